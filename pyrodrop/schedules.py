"""Schedules of the weight of the KL divergence (by epoch) and of the learning rate (by step), for training.

    linear      (epoch - after) / epochs in [0, 1], for start 0    fit(kl_weight=...)      Molchanov, Ashukha & Vetrov (2017)
    staircase   increment (floor(epoch) + 1), at most 1            fit(kl_weight=...)      Mittov's slides, 0.02 per epoch
    cosine      (1 + cos(pi step / steps)) / 2                     fit(lr_schedule=...)    Loshchilov & Hutter (2017), SGDR

Instead of a schedule, `pyrodrop.fit` also accepts any function: of the (fractional) number of completed epochs for
`kl_weight`, and of the number of completed steps for `lr_schedule`. Passing a `KLSchedule` as `lr_schedule`, or an
`LRSchedule` as `kl_weight`, is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pyrodrop.checks import Count, Real, checked

__all__ = ["KLSchedule", "LRSchedule", "cosine", "linear", "staircase"]


@dataclass(frozen=True)
class _Schedule:
    """A formula by name and the arguments after its first, so that it can be printed, compared and pickled."""

    name: str
    arguments: tuple[tuple[str, float], ...]

    def __call__(self, done: float) -> float:
        return _FORMULAS[self.name](done, **dict(self.arguments))

    def __str__(self) -> str:
        """The call that creates this schedule."""
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments)})"


class KLSchedule(_Schedule):
    """The weight of the KL divergence as a function of completed epochs, for ``fit(kl_weight=...)``."""


class LRSchedule(_Schedule):
    """A factor of the learning rate as a function of completed steps, for ``fit(lr_schedule=...)``."""


@checked
def linear(
    epochs: Annotated[float, Real("the length of the increase", above=0)],
    *,
    start: Annotated[float, Real("the weight before the increase", least=0, most=1)] = 0.0,
    after: Annotated[float, Real("the epoch at which the increase begins", least=0)] = 0.0,
) -> KLSchedule:
    """A weight of the KL divergence that grows linearly to 1.

    Molchanov, Ashukha & Vetrov (2017), https://arxiv.org/abs/1701.05369, released code.

    Args:
        epochs: length of the increase, in epochs.
        start: weight until epoch `after`, in [0, 1].
        after: epoch at which the increase begins.

    Raises:
        ValueError: `epochs` is not positive, `start` is outside [0, 1], or `after` is negative.
        TypeError: one of them is no real number.

    Example:
        >>> from pyrodrop import schedules
        >>> weight = schedules.linear(10, after=5)
        >>> [weight(epoch) for epoch in (0, 5, 10, 15, 20)]
        [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    return KLSchedule("linear", (("epochs", epochs), ("start", start), ("after", after)))


@checked
def staircase(
    increment: Annotated[float, Real("the growth of the weight per epoch", above=0, most=1)] = 0.02,
) -> KLSchedule:
    """A weight of the KL divergence that is `increment` in the first epoch and grows by it every epoch, up to 1.

    Raises:
        ValueError: `increment` is outside (0, 1].
        TypeError: it is no real number.
    """
    return KLSchedule("staircase", (("increment", increment),))


@checked
def cosine(steps: Annotated[int, Count("the number of steps until the learning rate is 0")]) -> LRSchedule:
    """A learning-rate factor that falls from 1 to 0 along half a period of a cosine, and stays at 0.

    Loshchilov & Hutter (2017), SGDR, https://arxiv.org/abs/1608.03983, eq. 5 without restarts.

    Args:
        steps: number of steps after which the factor is 0.

    Raises:
        ValueError: `steps` is less than 1.
        TypeError: it is no whole number.

    Example:
        >>> from pyrodrop import schedules
        >>> factor = schedules.cosine(100)
        >>> [round(factor(step), 3) for step in (0, 50, 100, 200)]
        [1.0, 0.5, 0.0, 0.0]
    """
    return LRSchedule("cosine", (("steps", steps),))


_FORMULAS: Mapping[str, Callable[..., float]] = {
    "linear": lambda epoch, epochs, start, after: min(1.0, start + (1 - start) * max(0.0, epoch - after) / epochs),
    "staircase": lambda epoch, increment: min(1.0, increment * (math.floor(epoch) + 1)),
    "cosine": lambda step, steps: 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps)),
}
