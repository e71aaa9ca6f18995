"""Schedules of a training's factors: of the divergence's weight by epoch, of the learning rate by step.

    linear      (epoch - after) / epochs, within 0 and 1      fit(kl_weight=...)      Molchanov, Ashukha & Vetrov (2017)
    staircase   increment (floor(epoch) + 1), up to 1         fit(kl_weight=...)      Mittov's slides, .02 an epoch
    cosine      (1 + cos(pi step / steps)) / 2                fit(lr_schedule=...)    Loshchilov & Hutter (2017), SGDR

`pyrodrop.fit` takes any function in their place: of the (fractional) number of epochs done for `kl_weight`, of the number
of steps done for `lr_schedule`. A schedule of this module knows which of the two it is, and is refused as the other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any


# Frozen data, not closures: an entry of the zoo can say what its schedule is, and a process be sent one.
class _Described:
    def __str__(self) -> str:
        """The call that makes this schedule."""
        own: Any = self
        values = ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(own))
        return f"{type(self).__name__.lower()}({values})"


class KLSchedule(_Described, ABC):
    """The weight of the divergence as a function of the epochs done: an argument of ``fit(kl_weight=...)``."""

    @abstractmethod
    def __call__(self, epoch: float) -> float: ...


class LRSchedule(_Described, ABC):
    """A factor of the learning rate as a function of the steps done: an argument of ``fit(lr_schedule=...)``."""

    @abstractmethod
    def __call__(self, step: int) -> float: ...


def linear(epochs: float, *, start: float = 0.0, after: float = 0.0) -> KLSchedule:
    """From `start` until epoch `after` to 1 `epochs` later, and 1 from there on."""
    if not epochs > 0 or not 0 <= start <= 1 or not after >= 0:
        raise ValueError(
            f"a linear schedule needs epochs > 0, start in [0, 1] and after >= 0; got {epochs}, {start} and {after}"
        )
    return Linear(epochs, start, after)


def staircase(increment: float = 0.02) -> KLSchedule:
    """Grows by `increment` in every epoch, the first included, up to 1."""
    if not 0 < increment <= 1:
        raise ValueError(f"increment is what the weight grows by in an epoch and must lie in (0, 1]; got {increment}")
    return Staircase(increment)


def cosine(steps: int) -> LRSchedule:
    """From 1 to 0 over `steps` steps, along half a period of a cosine, and 0 from there on."""
    if not steps >= 1:
        raise ValueError(
            f"steps is the number of steps until the learning rate is 0 and must be at least 1; got {steps}"
        )
    return Cosine(steps)


@dataclass(frozen=True)
class Linear(KLSchedule):
    """See `linear`."""

    epochs: float
    start: float
    after: float

    def __call__(self, epoch: float) -> float:
        return min(1.0, self.start + (1 - self.start) * max(0.0, epoch - self.after) / self.epochs)


@dataclass(frozen=True)
class Staircase(KLSchedule):
    """See `staircase`."""

    increment: float

    def __call__(self, epoch: float) -> float:
        return min(1.0, self.increment * (math.floor(epoch) + 1))


@dataclass(frozen=True)
class Cosine(LRSchedule):
    """See `cosine`."""

    steps: int

    def __call__(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))
