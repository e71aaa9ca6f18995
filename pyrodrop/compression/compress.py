"""Compression of a trained model and guide, and the report on it.

Weights are counted as in papers on pruning: those of dense layers and convolutions that are not 0, without biases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyrodrop.checks import Flag, Inputs, checked, num_rows
from pyrodrop.compression.kept import bound_of, kept_weights, ratio, uncut_weights
from pyrodrop.compression.plain import check_model, examples, plain_network
from pyrodrop.compression.units import NotFollowed, without_unused_units
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
    model = _on_cpu(model)
    rows = examples(model, x)
    network = plain_network(model, kept_weights(guide, threshold), rows)
    if structured and not isinstance(rows, Tensor):
        raise NotFollowed(
            "compression needs a network with one input (structured=False works for every network and keeps its shape); "
            f"got {len(rows)}"
        )
    return without_unused_units(network, rows) if structured else network  # type: ignore[arg-type]


@exclusive()
def compression_report(
    model: Any, guide: Any, *, threshold: float | None = None, x: Inputs | None = None
) -> CompressionReport:
    """Sizes of the network of the posterior means and of the compressed one; arguments and errors as of `compress`."""
    small = compress(model, guide, threshold=threshold, x=x)
    model = _on_cpu(model)
    rows = examples(model, x)
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


def _on_cpu(model: Any) -> Any:
    """The model itself if it is on the CPU, otherwise a copy on the CPU."""
    return model if all(p.device.type == "cpu" for p in model.parameters()) else copy.deepcopy(model).cpu()
