"""How learning rates of published recipes fall: a factor by the share of the training that is done."""

from __future__ import annotations

from collections.abc import Callable


def late(share: float) -> float:
    """Constant for the first half, then straight to 0."""
    return min(1.0, 2 * (1 - share))


def straight(share: float) -> float:
    """Straight to 0."""
    return 1 - share


def stairs(share: float) -> float:
    """A fifth at each of four milestones."""
    return float(0.2 ** sum(share >= milestone for milestone in (0.5, 0.6, 0.7, 0.8)))


def decaying(step: int, *, decay: Callable[[float], float], steps: int) -> float:
    """Factor of the learning rate at a step, by the share of all steps that is done."""
    return decay(step / steps)
