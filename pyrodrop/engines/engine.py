"""The interface of an engine, which makes the training steps.

    pyro       runs Pyro's handlers at every step; works for any model and guide
    traced     replays a graph of the gradient, operation by operation; torch's optimiser updates the parameters
    compiled   compiles gradient and update together with TorchInductor; on a GPU, launches them as one CUDA graph

All three draw the same random numbers in the same order and update the network's buffers alike. `traced` does the same
arithmetic as Pyro; `compiled` does it in another order and agrees up to rounding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from pyrodrop.engines.graph import Batch

Name = Literal["auto", "pyro", "traced", "compiled"]
NAMES: tuple[Name, ...] = get_args(Name)


class Plan(NamedTuple):
    """The factors and learning rates of a block of consecutive steps, one entry per step.

    Attributes:
        first: number of the block's first step, counted from 0.
        factors: power of the likelihood, and weight of the KL divergence of the weights.
        rates: learning rate of every parameter group.
    """

    first: int
    factors: list[tuple[float, float]]
    rates: list[list[float]]


class Engine(Protocol):
    """Makes the training steps."""

    name: str

    def begin(self, plan: Plan) -> None:
        """Prepare for a block of steps."""

    def step(self, batch: Batch, index: int) -> Tensor:
        """Make the step of this index in the block; returns nll and kl before the step, ``[2]``."""

    def finish(self, steps: int) -> None:
        """Bring the optimiser's state to what it would be after `steps` steps of its own."""


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    """Set the learning rate of every parameter group of an optimiser."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
