"""Stated and true coverage of bands: `Fit.certify` on problems whose function is known.

    python -m pyrodrop.analysis.lab.benchmarks.bands FILE.csv [--names PROBLEM ...] [--refits R] [--sets R]

A network D-50-K with tanh under N(0, 1) priors is fitted by each guide, 1,000 steps of Adam on all rows. Stated is what
`Fit.certify` says of one data set, by `refits` functions of the best predictor; true is the same of `sets` fresh data sets
of the true function. Repaired is the true coverage of bands that are widened by the stated factors. All are inside the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.calibration import certify
from pyrodrop.analysis.calibration.certify import Simulated
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.benchmarks.timing import command
from pyrodrop.training.reasons import collected

GUIDES: Mapping[str, Callable[[Any], Any]] = {
    "MC dropout .02": lambda model: guides.BernoulliDropout(model, 0.02),
    "MC dropout .1": lambda model: guides.BernoulliDropout(model, 0.1),
    "mean field": guides.MeanField,
    "Gaussian dropout": lambda model: guides.GaussianDropout(model, alpha=0.1),
}
WIDE, UNIT = (-2.0, 2.0), (0.0, 1.0)
# rows, columns, range of x, function of the columns, and noise, which logits have none of
PROBLEMS: Mapping[str, tuple[int, int, tuple[float, float], Callable[..., Any], float | None]] = {
    "fast sine": (120, 1, WIDE, lambda x: 2 * torch.sin(4 * x) + x**2, 0.5),
    "slow sine": (100, 1, WIDE, lambda x: torch.sin(3 * x) + x / 2, 0.3),
    "step": (150, 1, WIDE, lambda x: torch.tanh(8 * x), 0.2),
    "line": (60, 1, WIDE, lambda x: 1.5 * x, 0.5),
    "surface": (200, 2, WIDE, lambda a, b: torch.sin(2 * a) * b + b**2 / 2, 0.3),
    "friedman": (250, 5, UNIT, lambda a, b, c, d, e: 10 * (math.pi * a * b).sin() + 20 * (c - .5)**2 + 10 * d + 5 * e, 1.0),
    "noise": (80, 1, WIDE, lambda x: 0 * x, 1.0),
    "bump": (200, 1, WIDE, lambda x: 2 * torch.exp(-8 * (x - 0.5) ** 2) + 0.3 * x, 0.2),
    "kink": (100, 1, WIDE, lambda x: x.abs() + x / 3, 0.2),
    "ten columns": (150, 10, UNIT, lambda a, b, c, *_: 3 * a - 4 * (b - 0.5) * c, 0.3),
    "two classes": (200, 1, WIDE, lambda x: (0 * x, 3 * torch.sin(2 * x)), None),
    "three classes": (200, 2, WIDE, lambda a, b: (0 * a, 2 * a, 2 * torch.sin(2 * b)), None),
}  # fmt: skip


def measured(name: str, guide: str, refits: int, sets: int) -> dict[str, Any]:
    """A row of the table: stated, true and repaired coverage inside the data."""
    count, columns, (low, high), function, noise = PROBLEMS[name]

    def f(x: Tensor) -> Tensor:
        values = function(*x.unbind(1))
        return torch.stack(values if isinstance(values, tuple) else (values,), 1)

    def observed(f: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=f).sample() if noise is None else f + noise * torch.randn_like(f)

    torch.manual_seed(1)
    x = (low + (high - low) * torch.rand(count, columns)).sort(0).values if columns == 1 else (
        low + (high - low) * torch.rand(count, columns)
    )  # fmt: skip
    rows = data.Dataset(x, observed(f(x)))
    likelihood = likelihoods.Categorical() if noise is None else likelihoods.Gaussian()
    model = models.MLP([columns, 50, f(x).shape[1]], "tanh", prior=priors.Gaussian(), likelihood=likelihood, seed=0)
    with collected():
        rows = rows if noise is None else rows.standardized()
        fit = pyrodrop.fit(model, GUIDES[guide](model), rows, steps=1000, lr=1e-2)
    stated = fit.certify(refits).held["inside"]
    regions: Any = fit.certificate and fit.certificate.regions
    length, held, repaired = regions.kernel.length, certify._held, list[float]()

    def kept(here: Tensor, number: int, level: float, inside: Tensor, reach: Tensor, *rest: Any) -> Any:
        repaired.append(float((reach[:, here] <= stated.factor).double().mean()))
        return held(here, number, level, inside, reach, *rest)

    def simulated(rows: Any, points: Tensor, count: int) -> Simulated:
        at_rows, at_points = (f(at).expand(count, -1, -1) for at in (rows.x, points))
        return Simulated(at_points, observed(at_rows), observed(at_rows))

    truth = SimpleNamespace(by="truth", length=length, simulated=simulated)
    with mock.patch.object(certify, "best_predictor", return_value=truth), mock.patch.object(certify, "_held", kept):
        true = certify.of_fit(fit, sets, 0.95, 7).held["inside"].coverage
    scores = {"stated": stated.coverage, "true": true, "repaired": repaired[0], "factor": stated.factor}
    return {
        "study": "bands",
        "problem": name,
        "method": guide,
        **{key: round(value, 4) for key, value in scores.items()},
    }


def main(file: Path, *, names: tuple[str, ...] = tuple(PROBLEMS), refits: int = 32, sets: int = 50) -> None:
    """Measure problems and put their rows into a table."""
    for name in names:
        tidy.put(file, [measured(name, guide, refits, sets) for guide in GUIDES], {"refits": refits, "sets": sets})


if __name__ == "__main__":
    command(main)
