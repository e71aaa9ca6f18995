"""Functions of a posterior as one PyTorch module, for `torch.export`, `torch.onnx` and gradients in x.

    f_t  = network(x; W_t)      W_t ~ q, t = 1 ... S      the W_t are stored, ``[S, ...]`` each
    mean = mean_t E[y | f_t]
    sd   = (mean_t Var[y | f_t] + var_t E[y | f_t])^(1/2)

They are the functions of `predict` with the same seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from pyrodrop.changes import evaluating
from pyrodrop.checks import HasDraws, HasPosterior, Inputs, shown
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import seeded
from pyrodrop.likelihoods import elements, per_row
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.modules import ParameterTree
from pyrodrop.networks.checks import check_width
from pyrodrop.prediction.draws import Draws, drawn
from pyrodrop.prediction.predict import uncompiled
from pyrodrop.prediction.prediction import component_moments
from pyrodrop.threads import exclusive

Keep = Literal["draws", "moments"]


@exclusive()
def functions_of(
    model: Any, guide: Callable[..., Any], x: Inputs | None, count: int, seed: int, device: torch.device
) -> Draws:
    """Sample `count` functions, those of `predict` with this seed, with whole weights in `noise` and `fixed`.

    Args:
        x: a row, for guides that are called and for networks with dropout that no weight carries; others need none.

    Raises:
        TypeError: the model is not one of `pyrodrop.models`.
        ValueError: x is needed; the masks of a function depend on the number of rows; or as `predict`.
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(f"functions as a module need a model of pyrodrop.models; got {shown(model)}")
    read = isinstance(model, TrainedNetwork) and bool(model.dropouts.noise)
    needs_x = read or not isinstance(guide, HasPosterior | HasDraws)
    if x is None and needs_x:
        raise ValueError("x must be a few rows of x, since this run does not hold its training data; got None")
    if x is not None:
        x = check_inputs(x)
        check_width(x, model.in_features)
    if read and x is not None and mixes_examples(model, x):
        raise ValueError(
            "the masks of this network, whose rows depend on each other, are those of one number of rows: use predict"
        )
    with seeded(seed, device), torch.no_grad(), evaluating(model, guide):
        blocks = list(drawn(model, guide, x if needs_x else None, count, device))
        each = [block.whole() for block in blocks]
    noise = {name: torch.cat([weights[name] for weights in each]) for name in each[0]}
    return Draws(model, count, noise, {}, {name: value.detach() for name, value in blocks[0].fixed.items()})


class Functions(nn.Module):
    """S functions of a posterior as a module in evaluation mode; `Fit.module` makes it.

    Its argument is x ``[N, ...]`` in the units of the training data, or a tuple or mapping of tensors as in training. All S
    functions are computed at once: pass as many rows as fit in memory. The weights that differ between functions are stored
    once per function. No parameter requires gradients, and outputs are differentiable in x. `torch.export` and `torch.onnx`
    record one call of the network per function; what they record runs without this package.

    Args:
        mixture: draws from one or several models, with whole weights; all functions have the same weight.
        keep: what a call returns, as in `Fit.module`.

    Raises:
        TypeError: on a call with ``keep="moments"``: y has no mean and variance in closed form.
    """

    def __init__(self, mixture: Sequence[Draws], keep: Keep) -> None:
        super().__init__()
        self.keep = keep
        self.counts = [draws.num_draws for draws in mixture]
        self.models = nn.ModuleList(copy.deepcopy(draws.model) for draws in mixture)
        self.weights = nn.ModuleList(ParameterTree(draws.noise) for draws in mixture)
        self.same = nn.ModuleList(ParameterTree(dict(draws.fixed)) for draws in mixture)
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Functions:
        """Returns the module, which stays in evaluation mode."""
        return super().train(False)

    @uncompiled
    @exclusive()
    def forward(self, x: Inputs) -> Tensor | tuple[Tensor, Tensor]:
        fs, moments = [], []
        members: Any = zip(self.models, self.weights, self.same, self.counts, strict=True)
        with pyro.validation_enabled(False):  # checks of values cannot be recorded
            for model, weights, same, count in members:
                # torch.vmap's rules for normalisations and embeddings fix the number of rows
                fixes = any(module._buffers and not isinstance(module, nn.Linear) for module in model.network.modules())
                together = model.batches_weights and not (fixes and torch.compiler.is_compiling())
                noise, fixed = ({name: tree[name] for name in tree} for tree in (weights, same))
                output = Draws(model, count, noise, {}, fixed, mapped=together)(x)
                fs.append(model.likelihood.location(output, model.targets))
                if self.keep == "moments":
                    distribution = per_row(model.likelihood(output, model.targets), 2)
                    moments.append(component_moments(distribution))
        if self.keep == "draws":
            return torch.cat(fs)
        means, variances = map(torch.cat, zip(*moments, strict=True))
        if isinstance(elements(distribution), Categorical):
            return means.mean(0)
        return means.mean(0), (variances.mean(0) + means.var(0, correction=0)).sqrt()
