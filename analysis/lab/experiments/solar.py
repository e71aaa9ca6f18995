"""Solar irradiance in 5 years, on the last 75 years of the series: the LSTM of ``rnn/solar`` beside simple forecasts.

    persistence     y ~ N(0, s^2)                  no change; s^2 is the mean of y^2 in training
    ridge           y ~ N(b + w.x, s^2)            w minimises sum (y - b - w.x)^2 + lambda |w|^2, b is without penalty

for y the change in 5 years and x the last 22 yearly changes. lambda in 10^-3 ... 10^3 has the smallest leave-one-out error
in training, and s^2 is this error: the mean of (r_n / (1 - h_n))^2, with residuals r and the diagonal h of the hat matrix.

The LSTM is trained with several seeds. Its scores are means over these, for predictions averaged over draws of the weights
(MC dropout) and for the mean weights (standard dropout at test time). Gal & Ghahramani (2016),
https://arxiv.org/abs/1512.05287.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop import checks
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.analysis.zoo.train import load_splits
from pyrodrop.data import Dataset
from pyrodrop.metrics import regression_scores, rmse
from pyrodrop.training.result import Fit
from pyrodrop.zoo import entry

NAME = "rnn/solar"
LAMBDAS = tuple(10.0 ** (power / 4) for power in range(-12, 13))
SCORES = ("rmse", "log_density")
FORECASTS: Mapping[str, Callable[[Fit], Fit]] = {"MC dropout": lambda fit: fit, "mean weights": averaged}


@with_job_options("device")
def run(job: JobOptions, *, seeds: int = 3, steps: int | None = None, out: Path = Path("runs/solar")) -> dict[str, Any]:
    """Train the LSTM, and print its RMSE and log density next to those of persistence and ridge regression.

    Args:
        seeds: number of trainings, of half a minute each.
        steps: gradient steps; those of the entry if not given.
        out: folder for results.json.

    Returns:
        What is written to results.json.
    """
    seeds = checks.count(seeds, "seeds", "the number of trainings")
    steps = None if steps is None else checks.count(steps, "steps", "the number of gradient steps")
    with Experiment.begin("solar", out, job, {"seeds": seeds, "steps": steps}) as experiment:
        card = entry(NAME)
        [split] = load_splits(card)
        rows = [
            _row("persistence", None, _scores(*persistence(split.train, split.test), split.test)),
            _row("ridge", None, _scores(*ridge(split.train, split.test), split.test)),
        ]
        overrides = {} if steps is None else {"steps": steps}
        for seed in range(job.seed, job.seed + seeds):
            fit = card.fit(split.train, seed=seed, device=job.device, progress=job.progress, **overrides)
            for name, of in FORECASTS.items():
                scores = regression_scores(of(fit).predict(split.test.x, card.draws, seed=seed), split.test.y)
                rows.append(_row(f"LSTM, {name}", seed - job.seed, {score: scores[score] for score in SCORES}))
        methods = dict.fromkeys(row["method"] for row in rows)
        means = {m: tidy.means([tidy.scores(row) for row in rows if row["method"] == m]) for m in methods}
        content = {"models": {m: {score: row[score] for score in SCORES} for m, row in means.items()}}
        return experiment.write(content, rows=rows, settings={"data": card.data})


def _row(method: str, seed: int | None, scores: Mapping[str, float]) -> tidy.Row:
    return {"study": "solar", "problem": "irradiance in 5 years", "method": method, "seed": seed, **scores}


def persistence(train: Dataset, test: Dataset) -> tuple[Tensor, float]:
    """Forecasts of no change, ``[N, 1]``, and their standard deviation."""
    return torch.zeros_like(test.y), float(train.y.square().mean().sqrt())


def ridge(train: Dataset, test: Dataset) -> tuple[Tensor, float]:
    """Forecasts of ridge regression, ``[N, 1]``, and their standard deviation; see the docstring of this file."""
    x, y = train.x.flatten(1).double(), train.y.double()
    centre, rest = x.mean(0), y - y.mean()
    u, s, vh = torch.linalg.svd(x - centre, full_matrices=False)
    best = (math.inf, 0.0)
    for strength in LAMBDAS:
        hat = u * (s.square() / (s.square() + strength)) @ u.T
        left_out = (rest - hat @ rest) / (1 - hat.diagonal() - 1 / len(x))[:, None]
        best = min(best, (float(left_out.square().mean()), strength))
    error, strength = best
    w = vh.T @ ((s / (s.square() + strength))[:, None] * (u.T @ rest))
    return (y.mean() + (test.x.flatten(1).double() - centre) @ w).float(), math.sqrt(error)


def _scores(mean: Tensor, sd: float, test: Dataset) -> dict[str, float]:
    return {
        "rmse": rmse(mean, test.y),
        "log_density": float(torch.distributions.Normal(mean, sd).log_prob(test.y).double().sum(-1).mean()),
    }
