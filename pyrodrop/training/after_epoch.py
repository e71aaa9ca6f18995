"""The argument ``after_epoch``: a function that is called while training, and that may end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyrodrop.arguments import count, shown


@dataclass(frozen=True)
class AfterEpoch:
    """A function that is called while training.

    Attributes:
        every: number of steps between calls; None for the steps of an epoch.
        at_end: whether it is also called after the last step.
    """

    function: Callable[..., Any]
    every: int | None = None
    at_end: bool = False

    @classmethod
    def of(cls, after_epoch: Any) -> AfterEpoch | None:
        """The argument ``after_epoch``, checked: None, or a function, which may have an attribute ``every``."""
        if after_epoch is None:
            return None
        if not callable(after_epoch):
            raise TypeError(
                f"after_epoch must be a function of a fit and the number of epochs, or None; got {shown(after_epoch)}"
            )
        every = getattr(after_epoch, "every", None)
        if every is not None:
            every = count(every, "after_epoch.every", "the number of steps from one call to the next, or None,")
        return cls(after_epoch, every, hasattr(after_epoch, "every"))

    def next(self, done: int, per_epoch: int) -> int:
        """The number of steps done at the first call after `done` steps."""
        every = self.every or per_epoch
        return (done // every + 1) * every

    def due(self, done: int, per_epoch: int, steps: int | None) -> bool:
        """Whether it is called after `done` of `steps` steps; `steps` is None if the number is not known."""
        return done % (self.every or per_epoch) == 0 or (self.at_end and done == steps)

    def ends(self, done: int, per_epoch: int) -> bool:
        """Call it with the number of epochs done. Returns whether it returned True, which ends the training."""
        epochs, rest = divmod(done, per_epoch)
        return is_true(self.function(done / per_epoch if rest else epochs))


def is_true(answer: Any) -> bool:
    """Whether a function returned True, and not another true value, such as a score."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
