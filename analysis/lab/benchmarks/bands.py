"""Stated and true coverage of bands: `Fit.certify` on problems whose function is known.

    python -m pyrodrop.analysis.lab.benchmarks.bands FILE.csv [--names PROBLEM ...] [--refits R] [--sets R]

A network D-50-K with tanh under N(0, 1) priors is fitted by each of four guides, 1,000 steps of Adam on all rows. Stated is
what `Fit.certify` says of one data set, by `refits` functions of the best predictor; true is the same of `sets` fresh data
sets of the true function, from new initial weights each. Repaired is the true coverage of bands that are widened by the
stated factors. FILE is written after every problem. The last four problems were chosen after the code was finished.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.benchmarks.timing import command
from pyrodrop.training import certify
from pyrodrop.training.simulated import Simulated
from pyrodrop.training.worth import collected

STEPS, LR, LEVEL = 1000, 1e-2, 0.95
GUIDES: Mapping[str, Callable[[Any], Any]] = {
    "MC dropout .02": lambda model: guides.BernoulliDropout(model, 0.02),
    "MC dropout .1": lambda model: guides.BernoulliDropout(model, 0.1),
    "mean field": guides.MeanField,
    "exact last layer": guides.ExactLastLayer,
}


class Known(NamedTuple):
    """A function of x, drawn by `rows`, and the standard deviation of the noise; None for logits of class labels."""

    rows: Callable[[], Tensor]
    f: Callable[[Tensor], Tensor]
    noise: float | None


def _uniform(rows: int, columns: int = 1, low: float = -2.0, high: float = 2.0) -> Callable[[], Tensor]:
    return lambda: (
        low + (high - low) * torch.rand(rows, columns).sort(0).values
        if columns == 1
        else (low + (high - low) * torch.rand(rows, columns))
    )


def _logits(*columns: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(columns[0]), *columns], 1)


PROBLEMS: Mapping[str, Known] = {
    "fast sine": Known(_uniform(120), lambda x: 2 * torch.sin(4 * x) + x**2, 0.5),
    "slow sine": Known(_uniform(100), lambda x: torch.sin(3 * x) + x / 2, 0.3),
    "step": Known(_uniform(150), lambda x: torch.tanh(8 * x), 0.2),
    "line": Known(_uniform(60), lambda x: 1.5 * x, 0.5),
    "gap": Known(
        lambda: torch.cat([torch.rand(50, 1) / 2 - 1, torch.rand(50, 1) / 2 + 0.5]), lambda x: torch.sin(6 * x), 0.2
    ),
    "surface": Known(_uniform(200, 2), lambda x: torch.sin(2 * x[:, :1]) * x[:, 1:] + x[:, 1:] ** 2 / 2, 0.3),
    "friedman": Known(
        _uniform(250, 5, 0.0, 1.0),
        lambda x: (
            10 * torch.sin(math.pi * x[:, :1] * x[:, 1:2]) + 20 * (x[:, 2:3] - 0.5) ** 2 + 10 * x[:, 3:4] + 5 * x[:, 4:]
        ),
        1.0,
    ),
    "two classes": Known(_uniform(200), lambda x: _logits(3 * torch.sin(2 * x[:, 0])), None),
    "noise": Known(_uniform(80), torch.zeros_like, 1.0),
    "bump": Known(_uniform(200), lambda x: 2 * torch.exp(-8 * (x - 0.5) ** 2) + 0.3 * x, 0.2),
    "ten columns": Known(
        lambda: torch.randn(150, 10), lambda x: x @ torch.linspace(-1, 1, 10)[:, None] + x[:, :1] * x[:, 1:2], 0.5
    ),
    "three classes": Known(_uniform(200, 2), lambda x: _logits(2 * x[:, 0], 2 * torch.sin(2 * x[:, 1])), None),
    # chosen after the code was finished
    "chirp": Known(_uniform(150, 1, 0.0, 2.0), lambda x: torch.sin(4 * x**2), 0.3),
    "cubic": Known(_uniform(40, 1, -4.0, 4.0), lambda x: x**3, 3.0),
    "ring": Known(_uniform(150, 2), lambda x: _logits(4 - 2 * x.square().sum(1)), None),
    "plane": Known(lambda: torch.randn(100, 3), lambda x: x[:, :1] - 2 * x[:, 1:2] + x[:, 2:].abs(), 0.4),
}


def _observed(f: Tensor, noise: float | None) -> Tensor:
    return torch.distributions.Categorical(logits=f).sample() if noise is None else f + noise * torch.randn_like(f)


def fitted(problem: Known, guide: str) -> Any:
    """The fit of one data set of a problem."""
    torch.manual_seed(1)
    x = problem.rows()
    y = _observed(problem.f(x), problem.noise)
    labels = problem.noise is None
    likelihood = likelihoods.Categorical() if labels else likelihoods.Gaussian()
    widths = [x.shape[1], 50, problem.f(x).shape[1]]
    model = models.MLP(widths, "tanh", prior=priors.Gaussian(), likelihood=likelihood, seed=0)
    rows = data.Dataset(x, y) if labels else data.Dataset(x, y).standardized()
    with collected():
        return pyrodrop.fit(model, GUIDES[guide](model), rows, steps=STEPS, lr=LR)


class _Truth:
    by = "truth"

    def __init__(self, problem: Known, length: float) -> None:
        self.problem, self.length = problem, length

    def simulated(self, rows: data.Dataset, points: Tensor, count: int) -> Simulated:
        f = self.problem.f(rows.x).expand(count, -1, -1)
        y, again = (_observed(f, self.problem.noise) for _ in range(2))
        return Simulated(self.problem.f(points).expand(count, -1, -1), y, again)


def measured(problem: Known, guide: str, refits: int, sets: int) -> dict[str, float]:
    """Stated, true and repaired coverage by region, and the seconds of fit and certificate."""
    began = time.process_time()
    fit = fitted(problem, guide)
    trained = time.process_time()
    stated = fit.certify(refits, level=LEVEL)
    scores = {"fit s": trained - began, "certify s": time.process_time() - trained}
    held, repaired = certify._held, dict[str, float]()

    def kept(here: Tensor, number: int, level: float, inside: Tensor, reach: Tensor, *rest: Any) -> Any:
        name = certify.REGIONS[number]
        if name in stated.held:
            repaired[name] = float((reach[:, here] <= stated.held[name].factor).double().mean())
        return held(here, number, level, inside, reach, *rest)

    truth = _Truth(problem, stated.regions.kernel.length)
    with mock.patch.object(certify, "best_predictor", return_value=truth), mock.patch.object(certify, "_held", kept):
        true = certify.of_fit(fit, sets, LEVEL, 7)
    for name in stated.held.keys() & true.held.keys():
        scores |= {f"{name} stated": stated.held[name].coverage, f"{name} true": true.held[name].coverage}
        scores |= {f"{name} repaired": repaired[name], f"{name} factor": stated.held[name].factor}
    return scores | {"by process": float(stated.by != "fit")}


def rows(names: tuple[str, ...], refits: int, sets: int) -> Iterator[dict[str, Any]]:
    """A row for every problem and guide."""
    for name in names:
        for guide in GUIDES:
            scores = measured(PROBLEMS[name], guide, refits, sets)
            yield {"study": "bands", "problem": name, "method": guide, **{k: round(v, 4) for k, v in scores.items()}}


def main(file: Path, *, names: tuple[str, ...] = tuple(PROBLEMS), refits: int = 64, sets: int = 200) -> None:
    """Measure problems and put their rows into a table."""
    for name in names:
        tidy.put(file, list(rows((name,), refits, sets)), {"refits": refits, "sets": sets})


if __name__ == "__main__":
    command(main)
