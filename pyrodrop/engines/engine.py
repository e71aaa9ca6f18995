"""Who makes a step: Pyro, a replayed trace, or a compiled graph.

    pyro       handlers run at every step; any model and guide
    traced     the gradient is a graph, replayed operation by operation; the optimiser is torch's
    compiled   gradient and optimiser are one graph, compiled by TorchInductor; on a GPU launched as one CUDA graph

All three draw the same random numbers in the same order, and move the network's buffers alike. `traced` does Pyro's
arithmetic; `compiled` does it in another order, and agrees to rounding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from pyrodrop.engines.graph import Batch

Name = Literal["auto", "pyro", "traced", "compiled"]
NAMES: tuple[Name, ...] = get_args(Name)


class Plan(NamedTuple):
    """What a block of steps is told, one entry a step.

    Attributes:
        first: number of the block's first step, counted from 0.
        factors: of the log likelihood (its power) and of the weights' divergence.
        rates: learning rate of every parameter group.
    """

    first: int
    factors: list[tuple[float, float]]
    rates: list[list[float]]


class Engine(Protocol):
    """Makes the steps."""

    name: str

    def begin(self, plan: Plan) -> None:
        """Look at the block of steps to come."""

    def step(self, batch: Batch, index: int) -> Tensor:
        """Move the parameters by the block's step of this index; nll and kl before it, ``[2]``."""

    def finish(self, steps: int) -> None:
        """Leave the optimiser's state as if it had made all `steps` itself."""


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    """Give every parameter group of an optimiser its learning rate."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
