"""Compression of a trained model and guide, the report on it, and networks drawn from a posterior.

    network i:   W ~ q, sampled with seed + i

Of `DrawnNetworks` only the posterior is stored, regardless of their number: for a Gaussian posterior, a mean and a variance
per weight. Weights are counted as in papers on pruning: those of dense layers and convolutions that are not 0, without
biases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyrodrop import arguments
from pyrodrop.cards import Described
from pyrodrop.compression.kept import bound_of, keep_mask, kept_weights, ratio, uncut_weights
from pyrodrop.compression.plain import check_model, examples, plain_network
from pyrodrop.compression.units import NotFollowed, without_unused_units
from pyrodrop.constraints import Flag, checked
from pyrodrop.inputs import Inputs, num_rows
from pyrodrop.prediction.module import functions_of
from pyrodrop.threads import exclusive


@checked
@exclusive()
def compress(
    model: Any,
    guide: Callable[..., Any],
    *,
    threshold: float | None = None,
    structured: Annotated[bool, Flag("whether to remove units")] = True,
    x: Inputs | None = None,
) -> nn.Module:
    """The network with only the weights that are kept, as a plain PyTorch module on the CPU; see `Fit.compress`.

    Args:
        model: a trained model of `pyrodrop.models`.
        guide: a trained guide with an alpha per weight, such as `guides.SparseDropout`, or per input unit, such as
            `guides.LogNormalDropout`.
        threshold, structured, x: as of `Fit.compress`, without training data.

    Returns:
        A module that maps x to f, both in their original units.

    Raises:
        TypeError: as `Fit.compress`, or an argument is of another type.
        ValueError: an argument is out of range, or x is needed.

    Example:
        >>> import torch
        >>> from pyrodrop import compression, guides, likelihoods, models, priors
        >>> _ = torch.manual_seed(0)
        >>> model = models.MLP([4, 8, 1], prior=priors.ARD("weight"), likelihood=likelihoods.Gaussian())
        >>> guide = guides.SparseDropout(model)
        >>> with torch.no_grad():
        ...     guide.log_variance["layers.0.weight"][2:] = 5.0  # the noise of six hidden units, as if trained
        >>> network = compression.compress(model, guide)
        >>> [tuple(parameter.shape) for parameter in network.parameters()]
        [(2, 4), (2,), (1, 2), (1,)]
        >>> network(torch.zeros(5, 4)).shape
        torch.Size([5, 1])
    """
    check_model(model)
    model = on_cpu(model)
    rows = examples(model, x)
    network = plain_network(model, kept_weights(guide, threshold), rows)
    return smaller(network, rows) if structured else network


@exclusive()
def compression_report(
    model: Any, guide: Any, *, threshold: float | None = None, x: Inputs | None = None
) -> CompressionReport:
    """Sizes of the network of the posterior means and of the compressed one; arguments and errors as of `compress`."""
    small = compress(model, guide, threshold=threshold, x=x)
    model = on_cpu(model)
    rows: Any = examples(model, x)
    dense = plain_network(model, uncut_weights(guide), rows)
    return CompressionReport(measured(dense, rows), measured(small, rows), bound_of(guide, threshold))


@dataclass(frozen=True)
class Measured:
    """Sizes of one network.

    Attributes:
        units: number of outputs of every layer.
        weights: number of weights that are not 0.
        parameters: number of weights and biases that are stored, including zeros.
        flops: floating-point operations per example, as `torch.utils.flop_counter` counts them.
    """

    units: list[int]
    weights: int
    parameters: int
    flops: int


@dataclass(frozen=True)
class CompressionReport:
    """Sizes of the dense network, with the posterior means of all weights, and of the compressed one.

    Weights with ln alpha at or above `threshold` are pruned.
    """

    dense: Measured
    compressed: Measured
    threshold: float

    @property
    def ratios(self) -> dict[str, float | None]:
        """Dense divided by compressed, of weights, parameters and FLOPs; None if the compressed value is 0."""
        dense, small = asdict(self.dense), asdict(self.compressed)
        return {name: ratio(dense[name], small[name]) for name in ("weights", "parameters", "flops")}

    def record(self) -> dict[str, Any]:
        """All sizes and ratios as a dictionary that can be written as JSON."""
        return {**asdict(self), "ratios": self.ratios}


def measured(network: nn.Module, rows: Inputs) -> Measured:
    """The sizes of a plain network; `rows` are example inputs."""
    weights = [m.weight for m in network.modules() if isinstance(getattr(m, "weight", None), Tensor)]
    layers: list[Any] = [weight for weight in weights if weight.dim() > 1]  # type: ignore[operator,union-attr]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(rows)
    return Measured(
        units=[len(weight) for weight in layers],
        weights=sum(int(weight.count_nonzero()) for weight in layers),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        flops=counter.get_total_flops() // num_rows(rows),
    )


class DrawnNetworks(Described):
    """A sequence of plain networks, each with weights sampled from the posterior; x and f are in their original units.

    A network uses memory of its own as long as the caller keeps it. A second access gives the same network, bit for bit.

    Args:
        model: a trained model of `pyrodrop.models`.
        guide: its trained guide.
        count, threshold, seed, x: as of `Fit.ensemble`, without training data.

    Raises:
        ValueError: `count` is below 1, `seed` is negative, or `threshold` is out of range; the guide does not sample every
            weight.
        TypeError: `count` or `seed` is no whole number, or `guide` no guide. With a threshold: the guide has no alpha per
            weight, or no unit of the network is followed.
    """

    def __init__(
        self,
        model: Any,
        guide: Callable[..., Any],
        count: int,
        *,
        threshold: float | None = None,
        seed: int = 0,
        x: Inputs | None = None,
    ) -> None:
        arguments.count(count, "count", "the number of networks")
        arguments.count(seed, "seed", "the seed of network 0", least=0, most=arguments.MOST - count)
        check_model(model)
        if isinstance(guide, type) or not callable(guide):
            raise TypeError(f"guide must be the trained guide of the model; got {arguments.shown(guide)}")
        self.model: Any = model
        self.guide: Callable[..., Any] = guide
        self.size: int = count
        self.seed: int = seed
        self._mask = None if threshold is None else keep_mask(guide, threshold)
        self._x = examples(on_cpu(model), x)
        self[0]  # raises now if the network is not supported

    def describe(self) -> str:
        return f"DrawnNetworks({self.size} draws of {self.model.describe()})"

    def __len__(self) -> int:
        return self.size

    @exclusive()
    def __getitem__(self, index: int) -> nn.Module:
        device = next(iter(self.model.weight_sites().values())).device
        drawn = functions_of(self.model, self.guide, self._x, 1, self.seed + range(self.size)[index], device)
        weights = drawn.weights({name: values[0] for name, values in drawn.noise.items()})
        if self._mask is None:
            return plain_network(on_cpu(self.model), weights, self._x)
        weights = {name: torch.where(self._mask[name], w, 0.0) for name, w in weights.items()}
        return smaller(plain_network(on_cpu(self.model), weights, self._x), self._x)


def smaller(network: nn.Module, rows: Inputs | None) -> nn.Module:
    """A plain network without constant and unused units.

    Raises:
        NotFollowed: no unit is followed, or there are several inputs.
        ValueError: there are no example rows.
    """
    if rows is None:
        raise ValueError("the shape of the inputs of this network is unknown: pass example inputs as x=; got None")
    if not isinstance(rows, Tensor):
        raise NotFollowed(
            "compression needs a network with one input (structured=False works for every network and keeps its shape); "
            f"got {len(rows)}"
        )
    return without_unused_units(network, rows)


def on_cpu(model: Any) -> Any:
    """The model itself if it is on the CPU, otherwise a copy on the CPU."""
    return model if all(p.device.type == "cpu" for p in model.parameters()) else copy.deepcopy(model).cpu()
