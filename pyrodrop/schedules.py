"""Schedules of the weight of the KL divergence (by epoch) and of the learning rate (by step), for training.

    linear      (epoch - after) / epochs in [0, 1], for start 0    fit(kl_weight=...)      Molchanov, Ashukha & Vetrov (2017)
    cosine      (1 + cos(pi step / steps)) / 2                     fit(lr_schedule=...)    Loshchilov & Hutter (2017), SGDR

Instead of a schedule, `pyrodrop.fit` also accepts any function: of the (fractional) number of completed epochs for
`kl_weight`, and of the number of completed steps for `lr_schedule`. Passing a `linear` as `lr_schedule`, or a `cosine` as
`kl_weight`, is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pyrodrop.checks import Count, Real, checked, public

__all__ = ["cosine", "linear"]
public(__name__, __all__)


@checked
@dataclass(frozen=True)
class linear:  # noqa: N801 - as in `torch.optim`'s functions
    """A weight of the KL divergence that grows linearly to 1.

    References:
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

    epochs: Annotated[float, Real("the length of the increase", above=0)]
    start: Annotated[float, Real("the weight before the increase", least=0, most=1)] = 0.0
    after: Annotated[float, Real("the epoch at which the increase begins", least=0)] = 0.0

    def __call__(self, epoch: float) -> float:
        return min(1.0, self.start + (1 - self.start) * max(0.0, epoch - self.after) / self.epochs)


@checked
@dataclass(frozen=True)
class cosine:  # noqa: N801
    """A learning-rate factor that falls from 1 to 0 along half a period of a cosine, and stays at 0.

    References:
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

    steps: Annotated[int, Count("the number of steps until the learning rate is 0")]

    def __call__(self, step: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))
