"""Calibration of a network whose noise depends on x, on the rows of two tables: a temperature, and residuals.

Networks with two hidden layers of 50 and dropout .05, on the first splits of Gal & Ghahramani (2016); a fifth of the
training rows, which the network does not see, calibrates it.
"""

from __future__ import annotations

import torch

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors, schedules
from pyrodrop.analysis.experiments.critiques.panel import Size, sized
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.data import uci

TITLE = "Noise that depends on x, held-out rows"
STEPS: dict[Size, int] = {"default": 5000, "quick": 20}
TABLES = ("concrete", "energy")
APART = 1000  # difference between seeds: seed 1000 k uses split k
DRAWS = 300


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Scores before and after, and core-seconds of training, or of predicting the held-out rows and calibrating."""
    rows = {}
    for table in TABLES:
        split, steps, start = uci(table)[seed // APART], sized(STEPS, size), core_seconds()
        order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(seed))
        held_out, train = split.train.rows(order[: len(order) // 5]), split.train.rows(order[len(order) // 5 :])
        model = models.MLP(
            [train.x.shape[1], 50, 50, 2], prior=priors.Gaussian(1.0), seed=seed,
            likelihood=likelihoods.HeteroscedasticGaussian("softplus"),
        )  # fmt: skip
        guide = guides.BernoulliDropout(model, 0.05, mask_input=False)
        fit = pyrodrop.fit(
            model, guide, train, steps=steps, lr=5e-3, lr_schedule=schedules.cosine(steps), estimator="local",
            device="cpu", seed=seed, progress=False,
        )  # fmt: skip
        before = fit.predict(split.test.x, DRAWS, seed=seed)
        cost = core_seconds() - start
        rows[f"{table}, as trained"] = scores(before, split.test.y) | {"core-seconds": cost}
        for method in ("temperature", "residuals"):
            start = core_seconds()
            calibration = metrics.calibrate(fit.predict(held_out.x, DRAWS, seed=seed), held_out.y, method)
            cost = core_seconds() - start
            rows[f"{table}, {method}"] = scores(calibration(before), split.test.y) | {"core-seconds": cost}
    return rows


def scores(prediction: pyrodrop.Prediction, y: torch.Tensor) -> dict[str, float]:
    """The scores that calibration changes."""
    values = metrics.regression_scores(prediction, y)
    return {
        "log density": values["log_density"], "CRPS": values["crps"],
        "coverage of 50 %": values["coverage_50"], "coverage of 95 %": values["coverage_95"],
    }  # fmt: skip
