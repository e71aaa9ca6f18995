"""Draws of networks as constants of one graph, from x to a summary of their mixture.

    f_t = network(x; W_t)     t = 1 ... S      W_t constants      [S, N, ...]

A weight of the form M diag(s), as under dropout, is stored once: its draws are scales s_t ``[S, in]`` of the inputs of the
layer. Every other weight is stored once per draw. The draws are those of `predict` with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyro
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrodrop.changes import evaluating
from pyrodrop.devices import seeded
from pyrodrop.export.mapped import drawn, for_any_rows, product
from pyrodrop.export.summaries import Output, summaries
from pyrodrop.inputs import Inputs, mapped, num_rows, rebuilt
from pyrodrop.likelihoods import Missing, per_row
from pyrodrop.models.network import mixes_examples
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.prediction.blocks import Block, blocks
from pyrodrop.prediction.closed_form import closed_form
from pyrodrop.prediction.predict import BLOCK_BYTES, masks_of
from pyrodrop.reparam.lazy import LazyDistribution, LazyWeight
from pyrodrop.reparam.maps import LinearMap
from pyrodrop.reparam.shared_noise import SharedNoise


@dataclass(frozen=True)
class Functions:
    """Functions drawn from one posterior.

    Attributes:
        model: a model of `pyrodrop.models`, on the CPU.
        guide: the guide, which samples the weights.
        num_draws: number of functions.
        seed: seed of the draws.
    """

    model: Any
    guide: Callable[..., Any]
    num_draws: int
    seed: int


# How functions are computed: by `torch.vmap`, some of whose rules fix the number of rows; as additional rows, if the noise
# is masks; or by one copy of the network per function.
Way = Literal["mapped", "rows", "one by one"]
WAYS: tuple[Way, ...] = get_args(Way)
_FEW = 16  # outputs of a layer: up to this number, scaling its weight per draw is smaller than scaling its input


class Graph(nn.Module):
    """Maps the tensors of x to a dictionary of summaries of the mixture of all functions.

    Args:
        mixture: the functions; those of several posteriors form one mixture.
        x: a few rows, which determine the structure of the graph's inputs.
        levels: probabilities of the quantiles.

    Attributes:
        outputs: names of the summaries.
        way: how functions are computed.

    Raises:
        ValueError: outputs depend on other rows, the network changes itself when it is called, or as `predict`.
    """

    outputs: Sequence[Output] = ()
    way: Way = "one by one"

    def __init__(self, mixture: Sequence[Functions], x: Inputs, levels: Sequence[float]) -> None:
        super().__init__()
        self.x: Inputs = x
        self.levels: Sequence[float] = levels
        self.drawn: list[tuple[Functions, list[Block]]] = [
            (functions, _drawn(functions, standardised(functions.model, x))) for functions in mixture
        ]

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        return summaries(*self.mixture_at(rebuilt(self.x, list(tensors))), self.outputs, self.levels)

    def mixture_at(self, x: Inputs) -> tuple[Tensor, list[Any]]:
        """f ``[S, N, ...]`` and the distribution of y given the functions of each posterior, batch ``[S_r, N]``."""
        fs, distributions = [], []
        for functions, drawn_blocks in self.drawn:
            model = functions.model
            with ready(model, functions.guide):
                output = torch.cat([_outputs(model, block, standardised(model, x), self.way) for block in drawn_blocks])
                fs.append(model.likelihood.location(output, model.targets))
                observed = model.likelihood.likelihood if isinstance(model.likelihood, Missing) else model.likelihood
                distributions.append(per_row(observed(output, model.targets), 2))
        return torch.cat(fs), distributions


class ClosedForm(nn.Module):
    """Maps the tensors of x to mean and sd of y in closed form, as ``predict(x, method="analytic")``."""

    outputs: Sequence[Output] = ()

    def __init__(self, functions: Functions, x: Inputs) -> None:
        super().__init__()
        self.x: Inputs = x
        self.functions: Functions = functions
        self.moments = closed_form(functions.model, functions.guide)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        model, x = self.functions.model, rebuilt(self.x, list(tensors))
        with ready(model, self.functions.guide):
            mean, _, variance = self.moments(standardised(model, x))
        moments = {"mean": mean, "sd": variance.sqrt()}
        return {name: moments[name] for name in self.outputs}


def standardised(model: Any, x: Any) -> Any:
    """x as the model receives it: for a frame with codes, with standardised numbers."""
    scaled = None if model.columns is None else model.columns.scaled
    return x if scaled is None else (scaled(x[0]), *x[1:])


@contextmanager
def ready(model: Any, guide: Callable[..., Any]) -> Iterator[None]:
    """Evaluation mode, without gradients, and without checks of values, which a recording does not have."""
    with evaluating(model, guide), torch.no_grad(), pyro.validation_enabled(False):
        yield


def _drawn(functions: Functions, x: Inputs) -> list[Block]:
    """The draws, the same as in `predict`."""
    model, cpu = functions.model, torch.device("cpu")
    if model.changes_itself:
        raise ValueError(f"the network of a file must be the same at every call; {model.changes_itself}")
    if mixes_examples(model, x):
        raise ValueError(
            "the network of a file must compute every row of x by itself, so that a row has the same answer whichever rows "
            "come with it; in this network the output of one row depends on others"
        )
    example = mapped(lambda tensor: tensor[:1], x)
    with seeded(functions.seed, cpu), torch.no_grad(), evaluating(model, functions.guide):
        masks = masks_of(model, example, together=False)
        return list(blocks(functions.guide, model.weight_sites(), example, functions.num_draws, BLOCK_BYTES, masks))


def _outputs(model: Any, block: Block, x: Inputs, way: Way) -> Tensor:
    """The outputs of a block's functions, ``[S, N, ...]``."""
    if not block.noise:
        y = model.outputs(block.fixed, x)
        return y.expand(block.num_draws, *y.shape)  # type: ignore[no-any-return]
    if way == "rows":
        return _as_rows(model, block, x)

    def outputs(noise: dict[str, Tensor]) -> Tensor:
        weights = dict(block.fixed)
        for name, value in noise.items():
            q = block.distributions.get(name)
            strategy = (_Mapped if way == "mapped" else _OnInputs)(value)
            weights[name] = drawn(value) if q is None else LazyWeight(LazyDistribution(q, strategy, name))
        return model.outputs(weights, x)  # type: ignore[no-any-return]

    if way == "mapped":
        with for_any_rows():
            return torch.vmap(outputs)(block.noise)
    return torch.stack([outputs({n: value[t] for n, value in block.noise.items()}) for t in range(block.num_draws)])


def _as_rows(model: Any, block: Block, x: Inputs) -> Tensor:
    """The outputs of functions that differ only in masks, in one call in which every function adds its own rows."""
    if isinstance(model, TrainedNetwork):
        outputs = model.of_draws(block.noise, block.distributions, block.fixed, x)
    elif block.noise.keys() <= block.distributions.keys():
        draws, rows = block.num_draws, num_rows(x)
        weights = dict(block.fixed)
        for name, noise in block.noise.items():
            of_rows = noise[:, None].expand(draws, rows, *noise.shape[1:]).flatten(0, 1)
            weights[name] = LazyWeight(LazyDistribution(block.distributions[name], _OfRows(of_rows), name))
        repeated = mapped(lambda tensor: tensor.repeat(draws, *(1,) * (tensor.dim() - 1)), x)
        outputs = model.outputs(weights, repeated).unflatten(0, (draws, rows))
    else:
        outputs = None
    if outputs is None:
        raise ValueError("the noise is not that of masks of rows")
    return outputs  # type: ignore[no-any-return]


class _OnInputs(SharedNoise):
    """Scales the inputs of a layer without using the number of rows, which is unknown in a graph."""

    def push(self, q: Any, at: LinearMap) -> Tensor:
        scaled = at.x * at.over_inputs(self.noise)
        return scaled.contiguous() @ q.loc.mT if at.f is F.linear else at.f(scaled, q.loc)


class _Mapped(_OnInputs):
    """`_OnInputs` under `torch.vmap`, except that a weight with few outputs is scaled instead of the inputs."""

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if at.f is F.linear and q.loc.shape[0] <= _FEW:
            return product(at.x, self.whole(q))
        return super().push(q, at)


class _OfRows(_OnInputs):
    """`_OnInputs` with scales for every row, ``[N, in]``."""

    one_weight = False

    def keeps(self, q: Any) -> bool:
        return True

    def whole(self, q: Any) -> Tensor:
        raise ValueError("a weight is used otherwise than in a linear map of rows")
