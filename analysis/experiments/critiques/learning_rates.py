"""Learning rates of the panels: rates of dropout that are learned need larger steps than weights.

The logit of a drop rate has far to go, from -2 to -10 and less, and its gradient is noisy. With the learning rate of the
weights, a training of some thousand steps leaves it where it happens to be, and the spread depends on the start.
"""

from __future__ import annotations

WEIGHTS, LOGITS = 1e-2, 0.2


def learning_rate(name: str) -> float:
    """The learning rate of a parameter by its name."""
    return LOGITS if "logit" in name else WEIGHTS
