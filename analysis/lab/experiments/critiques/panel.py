"""The content of a panel, settings by the size of a run, and the training of networks.

Learned drop rates need larger steps than weights. The logit of a drop rate must move far, from -2 to -10 and less, and its
gradient is noisy. With the learning rate of the weights, a training of some thousand steps ends before the logit has
converged, and the spread depends on the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import pyrodrop
from pyrodrop import schedules
from pyrodrop.training.settings import LearningRate

Size = Literal["default", "quick"]
Panel = Mapping[str, Mapping[str, Mapping[str, Any]]]  # numbers of one critique by table, row and column
T = TypeVar("T")


def sized(sizes: Mapping[Size, T], size: Size) -> T:
    """The settings of a size; those of ``default`` if it has none."""
    return sizes.get(size, sizes["default"])


WEIGHTS, LOGITS = 1e-2, 0.2  # learning rates


def learning_rate(name: str) -> float:
    """The learning rate of a parameter by its name."""
    return LOGITS if "logit" in name else WEIGHTS


def fitted(
    models: Any, guides: Any, data: Any, *, count: int, steps: int, lr: LearningRate, seed: int, **others: Any
) -> pyrodrop.Replicates:
    """Replicates from new weights, with a cosine schedule, on the CPU; `others` go to `fit_replicates`."""
    settings = {"estimator": "local", "starts": "new", "device": "cpu", "progress": False, **others}
    schedule = schedules.cosine(steps)
    return pyrodrop.fit_replicates(
        models, guides, data, count=count, steps=steps, lr=lr, lr_schedule=schedule, seed=seed, **settings
    )
