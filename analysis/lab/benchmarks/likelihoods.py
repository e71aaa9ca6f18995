"""Likelihoods compared by the log density of held-out rows: counts, real numbers, ordered classes.

``python -m pyrodrop.analysis.lab.benchmarks.likelihoods [--names '[bike]'] [--rounds 3] [FILE]``: two hidden layers of 50
with MC dropout at rate 0.05 on bicycles hired per hour, the noise of airfoils and the grades of red wine. Four fifths of the
rows are for training, in a random split per round. The prior is that of `recipes`: for an x of mean length every unit has
the standard deviation 1 under it, and the outputs have 2. Scores are in nats per row; *gain* is the difference from the
first likelihood of the same table and split; ``seconds`` are processor time of the fit.

A Gaussian has a density of real numbers, not of counts. Its score of a count is the probability that its y rounds to it,

    P(y - 1/2 < Y < y + 1/2) = F(y + 1/2) - F(y - 1/2)

The probability of counts below 0 is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.benchmarks.tables.whole import table
from pyrodrop.analysis.lab.benchmarks.timing import Bench, command
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.data import Dataset
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.likelihoods import Likelihood
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize

HIDDEN, RATE, BATCH, LR, DRAWS, OF_F = 50, 0.05, 256, 1e-3, 200, 2.0
LEAST = 1e-8  # smallest difference of two float64 probabilities with 8 correct digits


@dataclass(frozen=True)
class Case:
    """Likelihoods that are compared on a table, the others with the first.

    Attributes:
        table: name of the table, see `whole.table`.
        likelihoods: likelihoods by title.
        steps: steps of Adam.
        counts: whether y are counts.
        classes: number of ordered classes, of which the smallest becomes 0; None if y are no classes.
    """

    table: str
    likelihoods: Mapping[str, Callable[[], Likelihood]]
    steps: int = 4000
    counts: bool = False
    classes: int | None = None


CASES = (
    Case("bike", {
        "Poisson": likelihoods.Poisson,
        "NegativeBinomial": likelihoods.NegativeBinomial,
        "NegativeBinomial, network": lambda: likelihoods.NegativeBinomial("network"),
        "Gaussian": likelihoods.Gaussian,
    }, steps=6000, counts=True),
    Case("airfoil", {
        "Gaussian": likelihoods.Gaussian,
        "HeteroscedasticGaussian": likelihoods.HeteroscedasticGaussian,
        "StudentT": likelihoods.StudentT,
        "StudentT, network": lambda: likelihoods.StudentT(scale="network"),
    }),
    Case("wine quality", {"Categorical": likelihoods.Categorical, "Ordinal": lambda: likelihoods.Ordinal(6)}, classes=6),
)  # fmt: skip


def compare(case: Case, splits: int, _: str = "cpu") -> dict[str, list[dict[str, float]]]:
    """The scores of every likelihood in every split."""
    x, y = (torch.tensor(values, dtype=torch.float32) for values in table(case.table))
    whole = Dataset(x, y[:, None] if case.classes is None else (y - y.min()).long())
    scored: dict[str, list[dict[str, float]]] = {title: [] for title in case.likelihoods}
    for split in range(splits):
        train, test = divided(whole, split)
        first = None
        for title, make in case.likelihoods.items():
            scored[title].append(values := scores(case, make(), train, test, split))
            if first is not None:
                values["gain"] = values["log_density"] - first
            first = values["log_density"] if first is None else first
    return scored


def divided(whole: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Random four fifths of the rows for training, standardised, and the other rows."""
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(whole)))
    train, test = whole.rows(order[len(order) // 5 :]), whole.rows(order[: len(order) // 5])
    if train.y.is_floating_point():
        return train.standardized(), test
    return Dataset(train.x, train.y, inputs=Standardize.of(train.x)), test


def scores(case: Case, likelihood: Likelihood, train: Dataset, test: Dataset, seed: int) -> dict[str, float]:
    """Mean scores of the test rows, and the processor time of the fit in seconds, with that of its child processes."""
    inputs, scale = train.x.shape[1], math.sqrt(2 / HIDDEN)
    labels = isinstance(likelihood, likelihoods.Categorical) and case.classes is not None
    prior = {"layers.0.*": inputs**-0.5, "layers.1.*": scale, "layers.2.*": OF_F * scale}
    model = models.MLP(
        [inputs, HIDDEN, HIDDEN, case.classes if labels else likelihood.outputs(1)],  # type: ignore[list-item]
        prior={pattern: priors.Gaussian(each) for pattern, each in prior.items()},
        likelihood=likelihood,
        seed=0,
    )
    before = core_seconds()
    fit = pyrodrop.fit(
        model, guides.BernoulliDropout(model, RATE, mask_input=False), train, steps=case.steps,
        batch_size=min(BATCH, len(train)), lr=LR, estimator="local", device="cpu", progress=False, seed=seed,
    )  # fmt: skip
    seconds = core_seconds() - before
    predicted = fit.predict(test.x, DRAWS)
    rounded = case.counts and not predicted.distribution.support.is_discrete  # type: ignore[union-attr]
    density = log_probability(predicted, test.y) if rounded else predicted.log_density(test.y).double()
    values = {"log_density": float(density.mean()), "seconds": seconds}
    if case.classes is None:
        low, high = predicted.interval(0.9)
        values["coverage_90"] = float(((low <= test.y) & (test.y <= high)).double().mean())
    return values


def log_probability(predicted: Prediction, y: Tensor) -> Tensor:
    """ln P(y - 1/2 < Y < y + 1/2) of the counts y ``[N, 1]`` under a distribution of real numbers, ``[N]``, float64.

    If the difference is too small to be accurate, far out, the log density is used instead.
    """
    exact = Prediction(predicted.f.double(), rebuilt(Tensor.double, predicted.distribution))
    y = y.double()
    inside = (exact.cdf(y + 0.5) - exact.cdf(y - 0.5))[:, 0]
    return torch.where(inside > LEAST, inside.clamp(min=LEAST).log(), exact.log_density(y))


BENCH = Bench("likelihoods", {case.table: case for case in CASES}, measure=compare, rounds=3)

if __name__ == "__main__":
    command(BENCH.run)
