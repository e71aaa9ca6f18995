"""Learned drop rates on Boston housing: they vanish, and a fixed rate does not.

Networks 13-50-1 with N(0, 1) on the weights and a learned precision, on the first splits of Gal & Ghahramani (2016); rates
of the hidden units are learned, all rows in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.lab.experiments.critiques.panel import Size, learning_rate, sized
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.data import uci
from pyrodrop.guides import Guide
from pyrodrop.metrics import regression_scores

TITLE = "Boston housing, rates of the hidden units"
FAULT = "concrete, per unit"
STEPS: dict[Size, int] = {"default": 2000, "quick": 20}
APART = 1000  # difference between seeds: seed 1000 k uses split k
DRAWS = 1000


GUIDES: Mapping[str, Callable[[Any], Guide]] = {
    "fixed rate .05": lambda m: guides.BernoulliDropout(m, 0.05, mask_input=False),
    "concrete, per layer": lambda m: guides.ConcreteDropout(m, mask_input=False),
    FAULT: lambda m: guides.ConcreteDropout(m, "input", mask_input=False),
    "Gaussian noise, one alpha": lambda m: guides.VariationalDropout(m, "B", "layer"),
}


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Smallest and largest rate, noise and spread of f in 1,000 dollars, scores of test rows, core-seconds of training."""
    return {name: measured(make, size, seed) for name, make in GUIDES.items()}


def measured(make: Callable[[Any], Guide], size: Size, seed: int) -> dict[str, float]:
    """The row of a guide."""
    split = uci("boston")[seed // APART]
    start, steps = core_seconds(), sized(STEPS, size)
    model = models.MLP([13, 50, 1], prior=priors.Gaussian(1.0), likelihood=likelihoods.Gaussian(), seed=seed)
    fit = pyrodrop.fit(
        model, make(model), split.train, steps=steps, lr=learning_rate, lr_schedule=schedules.cosine(steps),
        estimator="local", device="cpu", seed=seed, progress=False,
    )  # fmt: skip
    cost = core_seconds() - start
    prediction = fit.predict(split.test.x, DRAWS, seed=seed)
    rates = torch.as_tensor(fit.guide.rates()["layers.1.weight"])  # type: ignore[attr-defined]
    sd = float(fit.model.likelihood.precision.detach()) ** -0.5  # type: ignore[attr-defined]
    scores = regression_scores(prediction, split.test.y)
    return {
        "least rate": float(rates.min()), "largest rate": float(rates.max()),
        "noise": sd, "spread": float(prediction.spread.mean()),
        "log density": scores["log_density"], "RMSE": scores["rmse"], "coverage of 95 %": scores["coverage_95"],
        "core-seconds": cost,
    }  # fmt: skip
