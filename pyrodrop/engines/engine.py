"""The interface of an engine, which makes the training steps.

    pyro       runs Pyro's handlers at every step; works for any model and guide
    traced     replays a graph of the gradient, operation by operation; the optimiser updates the parameters
    compiled   compiles gradient and update together with TorchInductor; on a GPU, launches them as one CUDA graph

All three draw the same random numbers in the same order and update the network's buffers alike. `traced` does the same
arithmetic as Pyro; `compiled` does it in another order and agrees up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

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


class Engine(ABC):
    """Makes the training steps."""

    name: str

    @abstractmethod
    def begin(self, plan: Plan) -> None:
        """Prepare for some consecutive steps."""

    @abstractmethod
    def step(self, batch: Any, index: int) -> Tensor:
        """Make the step of this index in the plan; returns nll and kl before the step, ``[2]``."""

    def advance(self, batches: Any, index: int, most: int, made: list[Tensor]) -> None:
        """Make the step of this index, and some more after it where that is faster.

        Args:
            batches: supplies the minibatches.
            index: of the first step in the plan.
            most: the largest number of steps.
            made: gets nll and kl of every step, ``[2]``, also of those before an error.
        """
        made.append(self.step(batches.next(), index))

    @abstractmethod
    def finish(self, steps: int) -> None:
        """Bring the optimiser's state to what it would be after `steps` steps of its own."""
