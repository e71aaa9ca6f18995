"""How the networks of every panel are trained: from new weights, together, with a cosine schedule, on the CPU."""

from __future__ import annotations

from typing import Any

import pyrodrop
from pyrodrop import schedules
from pyrodrop.training.settings import LearningRate


def fitted(
    models: Any, guides: Any, data: Any, *, count: int, steps: int, lr: LearningRate, seed: int, **others: Any
) -> pyrodrop.Replicates:
    """`pyrodrop.fit_replicates` with the settings of the panels; `others` are further arguments, as the estimator."""
    settings = {"estimator": "local", "starts": "new", "device": "cpu", "progress": False, **others}
    schedule = schedules.cosine(steps)
    return pyrodrop.fit_replicates(
        models, guides, data, count=count, steps=steps, lr=lr, lr_schedule=schedule, seed=seed, **settings
    )
