"""Sizes of a network before and after compression.

Weights are counted as in papers on pruning: those of dense layers and convolutions that are not 0, without biases.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyrodrop.compression.kept import ratio
from pyrodrop.inputs import Inputs


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


def measured(network: nn.Module, row: Inputs) -> Measured:
    """The sizes of a plain network; `row` is an example input."""
    weights = [m.weight for m in network.modules() if isinstance(getattr(m, "weight", None), Tensor)]
    layers: list[Any] = [weight for weight in weights if weight.dim() > 1]  # type: ignore[operator,union-attr]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(row)
    return Measured(
        units=[len(weight) for weight in layers],
        weights=sum(int(weight.count_nonzero()) for weight in layers),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        flops=counter.get_total_flops(),
    )
