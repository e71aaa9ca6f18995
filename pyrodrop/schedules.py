"""Schedules of the divergence's weight in training: from a fraction of epochs to a factor.

linear      (epoch - after) / epochs, within 0 and 1      Molchanov, Ashukha & Vetrov (2017), after 5, over 15
staircase   increment (floor(epoch) + 1), up to 1         Mittov's slides, .02 an epoch
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def linear(epochs: float, *, start: float = 0.0, after: float = 0.0) -> Schedule:
    """From `start` until epoch `after` to 1 `epochs` later, and 1 from there on."""
    if not epochs > 0 or not 0 <= start <= 1 or not after >= 0:
        raise ValueError(
            f"a linear schedule needs epochs > 0, start in [0, 1] and after >= 0; got {epochs}, {start} and {after}"
        )
    return functools.partial(_linear, epochs=epochs, start=start, after=after)


def staircase(increment: float = 0.02) -> Schedule:
    """Grows by `increment` in every epoch, the first included, up to 1."""
    if not 0 < increment <= 1:
        raise ValueError(f"increment is what the weight grows by in an epoch and must lie in (0, 1]; got {increment}")
    return functools.partial(_staircase, increment=increment)


# Named and partially applied, not closures: an entry of the zoo can say what its schedule is, and a process be sent one.
def _linear(epoch: float, *, epochs: float, start: float, after: float) -> float:
    return min(1.0, start + (1 - start) * max(0.0, epoch - after) / epochs)


def _staircase(epoch: float, *, increment: float) -> float:
    return min(1.0, increment * (math.floor(epoch) + 1))
