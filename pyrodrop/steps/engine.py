"""The interface of engines, which make training steps: Pyro (`pyrodrop.training.loop`), or `pyrodrop.compiled`.

    pyro       runs Pyro's handlers at every step; works for any model and guide
    traced     replays a graph of the gradient, operation by operation; the optimiser updates the parameters
    compiled   compiles gradient and update together with TorchInductor; on a GPU, launches them as one CUDA graph

All three draw the same random numbers in the same order and update the network's buffers alike. `traced` does the same
arithmetic as Pyro; `compiled` does it in another order and agrees up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor


class Plan(NamedTuple):
    """The factors and learning rates of consecutive steps, one entry per step.

    Attributes:
        first: number of the first step, counted from 0.
        factors: power of the likelihood, and weight of the KL divergence of the weights.
        rates: learning rate of every parameter group.
    """

    first: int
    factors: list[tuple[float, float]]
    rates: list[list[float]]


class Engine(ABC):
    """Makes training steps.

    Attributes:
        name: of the engine.
        plan: of the steps since `begin`.
        made: nll and kl before each of these steps, ``[2]``, also of those before an error.
    """

    name: str
    plan: Plan
    made: list[Tensor]

    def holds(self, done: int, changed: str) -> bool:
        """Whether it can make the steps after `done`. If something has changed, it first prepares them again.

        Args:
            changed: which flag, mode or object of a module or parameter has changed since the last call, or an empty
                string.
        """
        return True

    def until(self, done: int, end: int) -> int:
        """The number of steps, at most `end`, that may be done before `holds` has to be called again."""
        return end

    def called(self, done: int) -> None:  # noqa: B027  most need not know
        """Called when user code has run after `done` steps, which may have changed something."""

    def begin(self, plan: Plan) -> None:
        """Prepare for the steps of a plan."""
        self.plan, self.made = plan, []

    def advance(self, batches: Any, count: int) -> None:
        """Make the next steps of the plan.

        Args:
            batches: supplies the minibatches.
            count: number of steps.
        """
        for _ in range(count):
            self.made.append(self.step(batches.next(), len(self.made)))

    @abstractmethod
    def step(self, batch: Any, index: int) -> Tensor:
        """Make the step of this index in the plan; returns nll and kl before it, ``[2]``."""

    def check(self, done: int) -> None:  # noqa: B027
        """Compare the last steps of a training with Pyro's if that is due; a RuntimeError if they differ."""

    @abstractmethod
    def finish(self, steps: int) -> None:
        """Bring the optimiser's state to what it would be after `steps` steps of its own, and clear the gradients, to which
        later steps of `SVI` would add."""
