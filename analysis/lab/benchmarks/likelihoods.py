"""Likelihoods compared by the log density of held-out rows: counts, real numbers, ordered classes.

``python -m pyrodrop.analysis.lab.benchmarks.likelihoods [--splits 3] [--only '[bike]'] [--out FILE]``: two hidden layers of
50 with MC dropout at rate 0.05 on bicycles hired per hour, the noise of airfoils and the grades of red wine, of
`whole.table`. Four fifths of the rows are for training. The prior is that of `recipes`: for an x of mean length every unit
has the standard deviation 1 under it, and the outputs have 2. Scores are means over splits with standard errors, in nats
per row; *gain* is the difference from the first likelihood of the same table, paired by split.

A Gaussian has a density of real numbers, not of counts. Its score of a count is the probability that its y rounds to it,

    P(y - 1/2 < Y < y + 1/2) = F(y + 1/2) - F(y - 1/2)

and its density is shown separately. The probability of counts below 0 is lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.benchmarks.tables.whole import table
from pyrodrop.analysis.lab.benchmarks.timing import command, machine, write
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.analysis.reports.score_table import mean_and_error, score_table
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.data import Dataset
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.likelihoods import Likelihood
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize

HIDDEN, RATE, BATCH, LR, DRAWS, OF_F = 50, 0.05, 256, 1e-3, 200, 2.0
LEAST = 1e-8  # smallest difference of two float64 probabilities with 8 correct digits
HEADERS = {
    "log_density": "log density", "log_density_se": "s.e.", "gain_se": "its s.e.", "coverage": "in 90%", "seconds": "fit, s",
}  # fmt: skip
FORMS = {"coverage": ".1%", "seconds": ".1f"}
Summary = dict[str, float | None]


@dataclass(frozen=True)
class Case:
    """A table, and the likelihoods that are compared on it.

    Attributes:
        table: name of the table, see `whole.table`.
        likelihoods: likelihoods by title; the others are compared with the first.
        steps: steps of Adam.
        counts: whether y are counts.
        classes: number of ordered classes, of which the smallest becomes 0; None if y are no classes.
    """

    table: str
    likelihoods: Mapping[str, Callable[[], Likelihood]]
    steps: int = 4000
    counts: bool = False
    classes: int | None = None

    def data(self) -> Dataset:
        """All rows of the table."""
        x, y = (torch.tensor(values, dtype=torch.float32) for values in table(self.table))
        return Dataset(x, y[:, None] if self.classes is None else (y - y.min()).long())


CASES = (
    Case(
        "bike",
        {
            "Poisson": likelihoods.Poisson,
            "NegativeBinomial": likelihoods.NegativeBinomial,
            "NegativeBinomial, network": lambda: likelihoods.NegativeBinomial("network"),
            "Gaussian": likelihoods.Gaussian,
        },
        steps=6000,
        counts=True,
    ),
    Case(
        "airfoil",
        {
            "Gaussian": likelihoods.Gaussian,
            "HeteroscedasticGaussian": likelihoods.HeteroscedasticGaussian,
            "StudentT": likelihoods.StudentT,
            "StudentT, network": lambda: likelihoods.StudentT(scale="network"),
        },
    ),
    Case(
        "wine quality",
        {"Categorical": likelihoods.Categorical, "Ordinal": lambda: likelihoods.Ordinal(6)},
        classes=6,
    ),
)


def main(
    splits: int = 3,
    steps: int | None = None,
    rows: int | None = None,
    draws: int = DRAWS,
    only: list[str] | None = None,
    out: Path | None = None,
) -> None:
    """Compare the likelihoods.

    Args:
        splits: number of random divisions into training and test rows.
        steps: steps of every fit; those of its table if None.
        rows: number of rows to use of every table, the first ones of each random order; all if None.
        draws: draws per prediction.
        only: names of the tables; all if None.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    print(machine())
    unknown = set(only or []) - {case.table for case in CASES}
    if unknown:
        raise SystemExit(f"--only takes {', '.join(case.table for case in CASES)}; got {', '.join(sorted(unknown))}")
    results = {}
    for case in (case for case in CASES if only is None or case.table in only):
        case = case if steps is None else replace(case, steps=steps)
        scored = compare(case, splits, rows, draws)
        shown(case, scored)
        results[case.table] = {
            "steps": case.steps, "splits": scored, "summary": {title: summary(scored, title) for title in scored},
        }  # fmt: skip
    about = {
        "widths": [HIDDEN, HIDDEN], "drop_rate": RATE, "mask_input": False, "estimator": "local", "batch_size": BATCH,
        "lr": LR, "sd of f under the prior": OF_F, "draws": draws, "splits": splits, "rows": rows,
    }  # fmt: skip
    write(out, "likelihoods", {"about": about, "tables": results})


def compare(case: Case, splits: int, rows: int | None, draws: int) -> dict[str, list[dict[str, float]]]:
    """The scores of every likelihood in every split."""
    whole = case.data()
    scored: dict[str, list[dict[str, float]]] = {title: [] for title in case.likelihoods}
    for split in range(splits):
        train, test = divided(whole, split, rows)
        for title, make in case.likelihoods.items():
            scored[title].append(scores(case, make(), train, test, draws, split))
    return scored


def divided(whole: Dataset, seed: int, rows: int | None = None) -> tuple[Dataset, Dataset]:
    """Random four fifths of the rows for training, standardised, and the other rows."""
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(whole))[:rows])
    size = len(order) // 5
    train, test = whole.rows(order[size:]), whole.rows(order[:size])
    if train.y.is_floating_point():
        return train.standardized(), test
    return Dataset(train.x, train.y, inputs=Standardize.of(train.x)), test


def network(case: Case, likelihood: Likelihood, inputs: int) -> models.MLP:
    """A network with two hidden layers of 50 and as many outputs as the likelihood needs."""
    labels = isinstance(likelihood, likelihoods.Categorical)
    outputs = case.classes if labels and case.classes is not None else likelihood.outputs(1)
    scale = math.sqrt(2 / HIDDEN)
    prior = {"layers.0.*": inputs**-0.5, "layers.1.*": scale, "layers.2.*": OF_F * scale}
    return models.MLP(
        [inputs, HIDDEN, HIDDEN, outputs],
        prior={pattern: priors.Gaussian(each) for pattern, each in prior.items()},
        likelihood=likelihood,
        seed=0,
    )


def scores(
    case: Case, likelihood: Likelihood, train: Dataset, test: Dataset, draws: int, seed: int
) -> dict[str, float]:
    """Mean scores of the test rows, and the processor time of the fit in seconds, with that of its child processes."""
    model = network(case, likelihood, train.x.shape[1])
    before = core_seconds()
    fit = pyrodrop.fit(
        model, guides.BernoulliDropout(model, RATE, mask_input=False), train, steps=case.steps,
        batch_size=min(BATCH, len(train)), lr=LR, estimator="local", device="cpu", progress=False, seed=seed,
    )  # fmt: skip
    seconds = core_seconds() - before
    predicted = fit.predict(test.x, draws)
    values = {"log_density": float(predicted.log_density(test.y).double().mean()), "seconds": seconds}
    if case.counts and not predicted.distribution.support.is_discrete:  # type: ignore[union-attr]
        values |= {
            "log_density_of_reals": values["log_density"],
            "log_density": float(log_probability(predicted, test.y).mean()),
        }
    if case.classes is None:
        low, high = predicted.interval(0.9)
        values["coverage"] = float(((low <= test.y) & (test.y <= high)).double().mean())
    return values


def log_probability(predicted: Prediction, y: Tensor) -> Tensor:
    """ln P(y - 1/2 < Y < y + 1/2) of the counts y ``[N, 1]`` under a distribution of real numbers, ``[N]``, float64.

    If the difference is too small to be accurate, far out, the log density is used instead.
    """
    exact = Prediction(predicted.f.double(), rebuilt(Tensor.double, predicted.distribution))
    y = y.double()
    inside = (exact.cdf(y + 0.5) - exact.cdf(y - 0.5))[:, 0]
    return torch.where(inside > LEAST, inside.clamp(min=LEAST).log(), exact.log_density(y))


def summary(scored: Mapping[str, list[dict[str, float]]], title: str) -> Summary:
    """Means over splits, with standard errors of the log density and of its gain over the first likelihood."""
    rows, first = scored[title], next(iter(scored))
    values: Summary = {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
    values["log_density_se"] = mean_and_error([row["log_density"] for row in rows])[1]
    if title != first:
        apart = [a["log_density"] - b["log_density"] for a, b in zip(rows, scored[first], strict=True)]
        values["gain"], values["gain_se"] = mean_and_error(apart)
    return values


def shown(case: Case, scored: Mapping[str, list[dict[str, float]]]) -> None:
    """Print the table of a case."""
    rows, apart = {}, {}
    for title in scored:
        row = summary(scored, title)
        if "log_density_of_reals" in row:
            density = [row["log_density_of_reals"] for row in scored[title]]
            apart[f"{title}, its density"] = {
                "log_density": row.pop("log_density_of_reals"), "log_density_se": mean_and_error(density)[1],
            }  # fmt: skip
            title = f"{title}, rounded"
        columns = ("log_density", "log_density_se", "gain", "gain_se", "coverage", "seconds")
        rows[title] = {column: row.get(column) for column in columns if column in row or column != "coverage"}
    heading = f"{case.table}: held-out log density, {case.steps:,} steps, {len(next(iter(scored.values())))} splits"
    print_table(score_table(rows, title=heading, headers=HEADERS, forms=FORMS, form=".3f", apart=apart))


if __name__ == "__main__":
    command(main)
