"""Sizes of a pruned network and of the network of the means of all weights.

Weights are counted as in papers on pruning: those of dense layers and convolutions that are not 0, without biases.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyrodrop.checks import Inputs, num_rows
from pyrodrop.compression import compress
from pyrodrop.compression.plain import examples, plain_network
from pyrodrop.distributions import CutNormal
from pyrodrop.zoo.trained import THRESHOLD


def compression_report(fit: Any, x: Inputs | None = None) -> CompressionReport:
    """Sizes of the network of the posterior means and of the compressed one; `x` as of `compress`."""
    model = copy.deepcopy(fit.model).cpu()
    rows = examples(model, x)
    dense = plain_network(model, uncut_weights(fit.guide), rows)
    small = compress(fit.model, fit.guide, x=rows)
    return CompressionReport(measured(dense, rows), measured(small, rows), getattr(fit.guide, "threshold", THRESHOLD))


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


def compression(mask: Mapping[str, Tensor]) -> float | None:
    """Compression ratio: number of weights divided by number of weights kept, without biases. None if none is kept."""
    return ratio(sum(m.numel() for m in mask.values()), sum(int(m.sum()) for m in mask.values()))


def ratio(before: float, after: float) -> float | None:
    """``before / after``; None if `after` is 0."""
    return before / after if after else None


def uncut_weights(guide: Any) -> dict[str, Tensor]:
    """The means of all weights, by site name, including those that `distributions.CutNormal` sets to 0 in training."""
    with torch.no_grad():
        posteriors = {name: guide.posterior(name) for name in guide.sites}
        return {name: (q.loc if isinstance(q, CutNormal) else q.mean).clone() for name, q in posteriors.items()}
