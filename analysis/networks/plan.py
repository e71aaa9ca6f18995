"""What is checked of a network: every cell, most of them, or a few; and with how many draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from pyrodrop.analysis.networks.case import Case, Cell
from pyrodrop.analysis.networks.posteriors import POSTERIORS
from pyrodrop.training.settings import Estimator


@dataclass(frozen=True)
class Draws:
    """How many draws the checks take.

    Attributes:
        predict, elbo, loss: of ours.
        oracle: draws of the oracle for each of ours.
    """

    predict: int = 10_000
    elbo: int = 500
    loss: int = 2_000
    oracle: int = 4

    def times(self, factor: float) -> Draws:
        """That many times as many, at least a few."""
        predict, elbo, loss = (max(50, int(n * factor)) for n in (self.predict, self.elbo, self.loss))
        return Draws(predict, elbo, loss, self.oracle)


THIN = Draws(predict=2_000, elbo=100, loss=300)


def cells(case: Case) -> list[Cell]:
    """Every cell of a network."""
    found: list[Cell] = []
    for guide in POSTERIORS:
        found += [Cell(guide, what) for what in ("joint", "pointwise", "moments", "analytic", "elbo", "save")]
        found += [Cell(guide, "checkpoint", engine=engine) for engine in ("pyro", "traced")]
        if guide == "Point":
            found.append(Cell(guide, "plain"))
        for estimator in get_args(Estimator):
            found.append(Cell(guide, "loss", estimator, "traced"))
            for engine in ("traced", "compiled"):
                found += [Cell(guide, what, estimator, engine) for what in ("steps", "replicates")]
    return found


# Compiling takes most of the time of all: each posterior's program once, and each estimator's.
COMPILED = {("Point", "shared"), ("Bernoulli", "local"), ("MeanField", "shared"), ("LowRank", "per_example")}


def usual_cells(case: Case) -> list[Cell]:
    """The cells, without most of those that are compiled: a compiled program is its trace's, by the same compiler."""
    return [
        cell
        for cell in cells(case)
        if cell.engine != "compiled" or ((cell.guide, cell.estimator) in COMPILED and cell.what == "steps")
        or (cell.guide, cell.estimator) == ("Bernoulli", "local")
    ]  # fmt: skip


_ESTIMATORS: tuple[Estimator, ...] = ("shared", "local", "per_example")


def few_cells(case: Case, number: int) -> list[Cell]:
    """A thin slice: predictions of one posterior, training of another; which ones goes round with the case's number."""
    if case.draws < HEAVY:
        return [Cell("Bernoulli", "save")]
    names, estimators = list(POSTERIORS), _ESTIMATORS
    one, two = names[1 + number % 4], names[1 + (number + 1) % 4]
    estimator = estimators[number % 3]
    return [
        Cell("Point", "plain"),
        Cell(one, ("joint", "moments", "pointwise")[number % 3]),
        Cell(two, "loss", estimator, "traced"),
        Cell(two, ("steps", "replicates")[number % 2], estimator, "traced"),
    ]


HEAVY = 0.02  # a case whose share of draws is less has one cell in the thin slice
