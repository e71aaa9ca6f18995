"""The effects of prior scale, standardisation, drop rate, number of steps and noise precision on a new data set.

    python -m pyrodrop.analysis.benchmarks.own_data [FILE]

One network Q-50-1 with MC dropout on three UCI tables with their first published splits. RMSE in standard deviations of y,
log density of y / sd(y) in nats per point, and the standard deviation of f under the prior, sqrt(E f(x)^2) over training
points in standard deviations of y, for the same prior scale of all weights:

    f(x) = w2 . relu(W1 x),   w ~ N(0, s^2)      E f(x)^2 = K s^4 |x|^2 / 2

so that the prior of the function depends on the units of x and y, which are arbitrary for raw data. Results are means over
sets and splits, with standard errors that are mostly due to differences between the sets.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.reports import generated
from pyrodrop.data import Dataset, Split
from pyrodrop.files import write_json

SETS, SPLITS, UNITS, DRAWS = ("boston", "concrete", "yacht"), 3, 50, 200


@dataclass(frozen=True)
class Choice:
    """The settings that a user chooses.

    Attributes:
        standardised: whether x and y are standardised.
        scale: s, the scale of the prior of all weights.
        rate: drop rate of the hidden units.
        steps: number of steps of Adam with the learning rate 0.01.
        precision: noise precision as a multiple of 1 / Var(y); if None it is learned, starting from 1 / Var(y).
    """

    standardised: bool = True
    scale: float = 1.0
    rate: float = 0.05
    steps: int = 2000
    precision: float | None = None


BASE = Choice()
SCALES, RATES = (0.03, 0.1, 0.3, 1.0, 3.0), (0.01, 0.05, 0.2, 0.5)
TABLES: dict[str, list[Choice]] = {
    "prior scale": [replace(BASE, standardised=flag, scale=s) for flag in (True, False) for s in SCALES],
    "drop rate": [replace(BASE, rate=rate, scale=s) for s in (0.3, 1.0) for rate in RATES],
    "steps": [replace(BASE, steps=steps) for steps in (100, 500, 2000, 8000)],
    "precision": [replace(BASE, precision=tau) for tau in (None, 1.0, 10.0, 100.0)],
}


def main(choices: dict[str, list[Choice]] = TABLES, sets: Iterable[str] = SETS, splits: int = SPLITS) -> dict[str, Any]:
    """Train all choices, print the tables, and return them as plain rows."""
    parts = [data.uci(name)[number] for name in sets for number in range(splits)]
    cases = [(choice, split) for choice in dict.fromkeys(chain(*choices.values())) for split in parts]
    together: dict[Any, list[tuple[Choice, Split]]] = {}
    for choice, split in cases:
        kind = choice.steps, choice.standardised, choice.precision is None, split.train.x.shape
        together.setdefault(kind, []).append((choice, split))
    scored: dict[Choice, list[dict[str, float]]] = {}
    for group in together.values():
        for (choice, _), row in zip(group, scores(group), strict=True):
            scored.setdefault(choice, []).append(row)
    tables = {title: [vars(choice) | summary(scored[choice]) for choice in rows] for title, rows in choices.items()}
    for title, rows in tables.items():
        print(title)
        for row in rows:
            print("  " + "  ".join(f"{key} {_number(value)}" for key, value in row.items()))
    return tables


def scores(cases: Sequence[tuple[Choice, Split]]) -> list[dict[str, float]]:
    """Train replicates with equally many steps, and score their test parts in units of the standard deviation of y."""
    built = [problem(choice, split) for choice, split in cases]
    runs = pyrodrop.fit_replicates(
        [model for model, _, _ in built],
        [
            guides.BernoulliDropout(model, choice.rate, mask_input=False)
            for (model, _, _), (choice, _) in zip(built, cases, strict=True)
        ],
        [train for _, train, _ in built],
        count=len(cases),
        steps=cases[0][0].steps,
        lr=0.01,
        progress=False,
    )
    rows = []
    for run, (choice, split), (_, train, test) in zip(runs, cases, built, strict=True):
        sd, predicted = float(split.train.y.std(correction=0)), run.predict(test.x, DRAWS)
        rows.append({
            "rmse": float((predicted.mean - test.y).square().mean().sqrt()) / sd,
            "log_density": float(predicted.log_density(test.y).mean()) + math.log(sd),
            "prior_sd": prior_sd(choice, train) / (1.0 if choice.standardised else sd),
        })  # fmt: skip
    return rows


def problem(choice: Choice, split: Split) -> tuple[models.MLP, Dataset, Dataset]:
    """The model with its training and test data."""
    train, test = split.train, split.test
    if not choice.standardised:
        train, test = (Dataset(rows.x, rows.y) for rows in (train, test))
    tau = (1.0 if choice.precision is None else choice.precision) / float(split.train.y.var(correction=0))
    likelihood = likelihoods.Gaussian(tau, learned=choice.precision is None)
    model = models.MLP([train.x.shape[1], UNITS, 1], prior=priors.Gaussian(choice.scale), likelihood=likelihood)
    return model, train, test


def prior_sd(choice: Choice, train: Dataset) -> float:
    """sqrt(E f(x)^2) over training points by the formula above, in the units that the network works in."""
    x = train.x if train.inputs is None else train.inputs(train.x)
    return float((UNITS * choice.scale**4 * x.square().sum(1) / 2).mean().sqrt())


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Means, and standard errors of the scores."""
    values = {key: torch.tensor([each[key] for each in rows]).double() for key in rows[0]}
    means = {key: float(value.mean()) for key, value in values.items()}
    errors = {f"{key}_se": float(values[key].std() / math.sqrt(len(rows))) for key in ("rmse", "log_density")}
    return means | errors


def text(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The table of prior scales in Markdown: held-out log density with standardised and with raw columns."""
    rows = tables["prior scale"]
    scales = sorted({row["scale"] for row in rows})
    lines = [["prior scale", *(f"{scale:g}" for scale in scales)]]
    for title, standardised in (("standardised", True), ("raw", False)):
        densities = {row["scale"]: row["log_density"] for row in rows if row["standardised"] is standardised}
        lines.append([title, *(f"{densities[scale]:.2f}" for scale in scales)])
    return generated.table(lines) + "\n"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    rows = main()
    if len(sys.argv) > 1:
        about = {"sets": SETS, "splits": SPLITS, "units": UNITS, "draws": DRAWS, "lr": 0.01}
        write_json(Path(sys.argv[1]), {"about": about, "tables": rows})
