"""The settings of a fit in plain numbers and words: `Fit.settings`, as it is saved with a fit or a checkpoint."""

from __future__ import annotations

from typing import Any

from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.settings import Settings


def record(settings: Settings, problem: Problem, seed: int) -> dict[str, Any]:
    """The settings that a problem is trained with, under this seed, and the fingerprint of its data.

    Training adds ``seconds`` and ``engine``, and ``replicates`` where there are several.
    """
    rows = len(problem.data)
    return {
        "steps": settings.steps,
        "device": settings.place.type,
        "estimator": settings.estimator,
        "kl_weight": "scheduled" if callable(settings.kl_weight) else settings.kl_weight,
        "likelihood_power": settings.likelihood_power,
        "precision": settings.precision,
        "model": describe(problem.model),
        "guide": describe(problem.guide),
        "batch_size": min(settings.batch_size or rows, rows),
        "num_data": rows,
        "data_fingerprint": problem.data.fingerprint,
        "noise_by_row": problem.noise_by_row(),
        "seed": seed,
    }
