"""How the networks of every panel are trained: from new weights, together, with a cosine schedule, on the CPU.

Rates of dropout that are learned need larger steps than weights. The logit of a drop rate has far to go, from -2 to -10 and
less, and its gradient is noisy. With the learning rate of the weights, a training of some thousand steps leaves it where it
happens to be, and the spread depends on the start.
"""

from __future__ import annotations

from typing import Any

import pyrodrop
from pyrodrop import schedules
from pyrodrop.training.settings import LearningRate

WEIGHTS, LOGITS = 1e-2, 0.2  # learning rates


def learning_rate(name: str) -> float:
    """The learning rate of a parameter by its name."""
    return LOGITS if "logit" in name else WEIGHTS


def fitted(
    models: Any, guides: Any, data: Any, *, count: int, steps: int, lr: LearningRate, seed: int, **others: Any
) -> pyrodrop.Replicates:
    """`pyrodrop.fit_replicates` with the settings of the panels; `others` are further arguments, as the estimator."""
    settings = {"estimator": "local", "starts": "new", "device": "cpu", "progress": False, **others}
    schedule = schedules.cosine(steps)
    return pyrodrop.fit_replicates(
        models, guides, data, count=count, steps=steps, lr=lr, lr_schedule=schedule, seed=seed, **settings
    )
