"""Learning-rate factors of published recipes, as functions of the completed share of the training."""

from __future__ import annotations

from collections.abc import Callable


def late(share: float) -> float:
    """1 for the first half, then linear to 0."""
    return min(1.0, 2 * (1 - share))


def straight(share: float) -> float:
    """Linear from 1 to 0."""
    return 1 - share


def stairs(share: float) -> float:
    """Multiplied by 0.2 after shares 0.5, 0.6, 0.7 and 0.8."""
    return float(0.2 ** sum(share >= milestone for milestone in (0.5, 0.6, 0.7, 0.8)))


def decaying(step: int, *, decay: Callable[[float], float], steps: int) -> float:
    """Factor of the learning rate at a step, from the share of all steps that is completed."""
    return decay(step / steps)
