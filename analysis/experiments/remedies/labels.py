"""Calibration of a classifier: a point estimate and dropout, before and after scaling by a temperature.

LeNet-300-100 is trained on 1,000 images of MNIST until it fits them. The temperature is fitted to 1,000 others, and scores
are of the 10,000 test images.
"""

from __future__ import annotations

import torch

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors, schedules
from pyrodrop.analysis.experiments.critiques.panel import Size, sized
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.data import mnist

TITLE = "LeNet-300-100 on 1,000 images of MNIST, test set"
STEPS: dict[Size, int] = {"default": 3000, "quick": 5}
TRAIN, HELD = 1000, 1000
DRAWS = 100


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Scores before and after the temperature, and core-seconds of training, or of the held-out predictions and the fit."""
    split = mnist(progress=False)
    order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(seed))
    train, held_out = split.train.rows(order[:TRAIN]), split.train.rows(order[TRAIN : TRAIN + HELD])
    test = split.test if size == "default" else split.test.first(100)
    rows = {}
    for name, rate, draws in (("point", None, 1), ("dropout .2", 0.2, DRAWS)):
        start, steps = core_seconds(), sized(STEPS, size)
        model = models.LeNet300100(prior=priors.Gaussian(1.0), likelihood=likelihoods.Categorical(), seed=seed)
        guide = guides.Point(model) if rate is None else guides.BernoulliDropout(model, rate, mask_input=False)
        fit = pyrodrop.fit(
            model, guide, train, steps=steps, lr=1e-3, lr_schedule=schedules.cosine(steps), batch_size=64,
            estimator="local", device="cpu", seed=seed, progress=False,
        )  # fmt: skip
        trained, before, start = core_seconds() - start, fit.predict(test.x, draws, seed=seed), core_seconds()
        calibration = metrics.calibrate(fit.predict(held_out.x, draws, seed=seed), held_out.y)
        cost = core_seconds() - start
        for title, prediction, extra in ((name, before, trained), (f"{name}, temperature", calibration(before), cost)):
            scores = metrics.classification_scores(prediction, test.y)
            rows[title] = {
                "ECE": scores["ece"], "log density": scores["log_density"], "accuracy": scores["accuracy"],
                "temperature": calibration.temperature if "temperature" in title else 1.0, "core-seconds": extra,
            }  # fmt: skip
    return rows
