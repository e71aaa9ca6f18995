"""The interface of an engine, which makes training steps.

    traced     replays a graph of the gradient, operation by operation; the optimiser updates the parameters
    compiled   compiles gradient and update together with TorchInductor; on a GPU, launches them as one CUDA graph

Both draw the random numbers of Pyro's steps in the same order and update the network's buffers alike. `traced` does the same
arithmetic as Pyro; `compiled` does it in another order and agrees up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from pyrodrop.steps import Plan


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

    def begin(self, plan: Plan) -> None:
        """Prepare for some consecutive steps."""
        self.plan, self.made = plan, []

    def advance(self, batches: Any, count: int) -> None:
        """Make the next steps of the plan.

        Args:
            batches: supplies the minibatches.
            count: of the steps.
        """
        for _ in range(count):
            self.made.append(self.step(batches.next(), len(self.made)))

    @abstractmethod
    def step(self, batch: Any, index: int) -> Tensor:
        """Make the step of this index in the plan; returns nll and kl before it, ``[2]``."""

    @abstractmethod
    def finish(self, steps: int) -> None:
        """Bring the optimiser's state to what it would be after `steps` steps of its own, and leave no gradients behind, to
        which later steps of `SVI` would add."""
