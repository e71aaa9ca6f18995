"""Selections of the cells to check, every one, most or a few, and numbers of draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from pyrodrop.analysis.lab.networks.case import Case, Cell
from pyrodrop.analysis.lab.networks.posteriors import POSTERIORS
from pyrodrop.training.settings import Estimator


@dataclass(frozen=True)
class Draws:
    """Numbers of samples of the checks.

    Attributes:
        predict: samples per prediction.
        elbo: samples per ELBO.
        loss: training steps of the check ``loss``.
        oracle: samples of the oracle for each of ours.
    """

    predict: int = 10_000
    elbo: int = 500
    loss: int = 2_000
    oracle: int = 4

    def times(self, factor: float) -> Draws:
        """The numbers of samples multiplied by `factor`, at least 50 each."""
        predict, elbo, loss = (max(50, int(n * factor)) for n in (self.predict, self.elbo, self.loss))
        return Draws(predict, elbo, loss, self.oracle)


THIN = Draws(predict=2_000, elbo=100, loss=300)


def cells(case: Case) -> list[Cell]:
    """Every cell of a network."""
    cells: list[Cell] = []
    for guide in POSTERIORS:
        cells += [Cell(guide, what) for what in ("joint", "moments", "module", "elbo", "save")]
        cells += [Cell(guide, "checkpoint", engine=engine) for engine in ("pyro", "traced")]
        if guide == "Point":
            cells += [Cell(guide, what) for what in ("plain", "compress")]
        for estimator in get_args(Estimator):
            cells.append(Cell(guide, "loss", estimator, "traced"))
            for engine in ("traced", "compiled"):
                cells += [Cell(guide, what, estimator, engine) for what in ("steps", "replicates")]
    return cells


# Compilation takes most of the time, so only these posteriors and estimators are compiled.
COMPILED = {
    ("Point", "shared"), ("Bernoulli", "local"), ("MeanField", "shared"),
    ("VariationalB", "local"), ("LowRank", "per_example"),
}  # fmt: skip


def usual_cells(case: Case) -> list[Cell]:
    """All cells but most of the compiled ones; compiled programs are made from the traces that other cells check."""
    return [
        cell
        for cell in cells(case)
        if cell.engine != "compiled" or ((cell.guide, cell.estimator) in COMPILED and cell.what == "steps")
        or (cell.guide, cell.estimator) == ("Bernoulli", "local")
    ]  # fmt: skip


_ESTIMATORS: tuple[Estimator, ...] = ("shared", "local", "per_example")


def few_cells(case: Case, number: int) -> list[Cell]:
    """A small selection: predictions with one posterior and training with another; the number of the case selects them."""
    if case.draws < HEAVY:
        return [Cell("Bernoulli", "save")]
    names, estimators = list(POSTERIORS), _ESTIMATORS
    first, two = names[1 + number % 4], names[1 + (number + 1) % 4]
    estimator = estimators[number % 3]
    return [
        Cell("Point", "plain"),
        Cell(first, ("joint", "moments")[number % 2]),
        Cell(two, "loss", estimator, "traced"),
        Cell(two, ("steps", "replicates")[number % 2], estimator, "traced"),
        Cell(first, "module"),
        Cell("Point", "compress"),
    ]


HEAVY = 0.02  # a case with a smaller share of samples has one cell in `few_cells`
