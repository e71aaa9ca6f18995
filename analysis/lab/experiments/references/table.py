"""The distances of all posteriors from one reference, as a table.

    NAME             mean over the single fits; its s.e. is the mean of their errors, at least the error of the mean
    ensemble NAME    the equal mixture of these fits

The columns that distinguish posteriors best come first: W2 of f, the spread of f over the reference's (at the test points,
and at, between and away from the training data, see `places`) and the covariance of f. Total variation of y follows, in
which observation noise hides differences. The rows of single fits are stored too, to show the variation over starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pyrodrop import metrics
from pyrodrop.analysis.comparison.comparison import Comparison, compare
from pyrodrop.analysis.comparison.to_reference import COLUMNS
from pyrodrop.analysis.lab.experiments.references.spreads import PLACES, spread_ratios
from pyrodrop.analysis.reports.score_table import best_first
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Predicts
from pyrodrop.training.replicates import Replicates

BY: Literal["wasserstein"] = "wasserstein"
ORDER = ("wasserstein", "spread", *PLACES, *COLUMNS[2:], "rmse", "error")  # then the log densities
NOTES = [
    "at, between, away: the same ratio at, between and away from the training data; of single fits, over points and fits",
    "ensemble: the equal mixture of all fits of a posterior; the other rows are means over these fits",
]
Row = dict[str, float | None]


@dataclass(frozen=True)
class Table:
    """The comparison of means and ensembles, the rows of single fits, and the ratios of spreads."""

    comparison: Comparison
    members: dict[str, list[Row]]
    spreads: dict[str, Any]

    def rows(self, study: str, problem: str, elbos: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """The rows of a table of results: of the methods, and with a `seed` of single fits, with their ELBOs."""
        key: dict[str, Any] = {"study": study, "problem": problem}
        whole: dict[str, Row] = self.comparison.rows | {"reference": self.comparison.reference or {}}
        rows: list[dict[str, Any]] = [key | {"method": name} | row | self.ends(name) for name, row in whole.items()]
        for name, many in self.members.items():
            rows += [key | {"method": name, "seed": s, **row, **elbos[name][s]} for s, row in enumerate(many)]
        return rows

    def ends(self, name: str) -> Row:
        """The smallest and the largest ratio of spreads by place."""
        of = self.spreads["places"][name]
        return {f"{place} {end}": of[place][end] for place in PLACES for end in ("lowest", "highest")}


def distance_table(
    fits: Mapping[str, Replicates], train: Dataset, test: Dataset, reference: Predicts, *, num_samples: int, seed: int
) -> Table:
    """Compare every fit, and every ensemble, with the reference."""
    runs: dict[str, Any] = {f"{name}/{i}": fit for name, many in fits.items() for i, fit in enumerate(many)}
    runs |= {f"ensemble {name}": many for name, many in fits.items()}
    comparison = compare(runs, test, BY, reference=reference, num_samples=num_samples, seed=seed)
    for name, run in runs.items():
        comparison.rows[name] |= _score(run, test, num_samples, seed)
    members = {
        name: [_ordered(comparison.rows[f"{name}/{i}"]) for i in range(len(many))] for name, many in fits.items()
    }
    rows = {name: _mean(rows_of_fits) for name, rows_of_fits in members.items()}
    rows |= {f"ensemble {name}": comparison.rows[f"ensemble {name}"] for name in fits}
    spreads = spread_ratios(fits, train, reference, num_samples=num_samples, seed=seed)
    medians = {
        name: {place: ratios["median"] for place, ratios in by_place.items()}
        for name, by_place in spreads["places"].items()
    }
    rows = {name: _ordered(row | medians[name]) for name, row in rows.items()}
    notes = [note for note in comparison.notes if "/" not in note.split(":")[0]] + NOTES  # not those on single fits
    apart = (comparison.reference or {}) | medians["reference"] | _score(reference, test, num_samples, seed)
    return Table(Comparison(BY, best_first(rows, BY, smallest=True), notes, _ordered(apart)), members, spreads)


def _score(run: Predicts, test: Dataset, num_samples: int, seed: int) -> Row:
    """The error of the mean of f, or of the most probable class."""
    prediction = run.predict(test.x, num_samples, seed=seed)
    if test.y.is_floating_point():
        return {"rmse": metrics.rmse(prediction.mean, test.y)}
    return {"error": 1 - metrics.accuracy(prediction, test.y)}


def _ordered(row: Row) -> Row:
    """The columns in the order of `ORDER`."""
    return {name: row[name] for name in ORDER if name in row} | row


def _mean(rows: list[Row]) -> Row:
    """The mean of every column; None if a fit lacks the number, and for the probability of a sign."""
    means: Row = {}
    for column in rows[0]:
        values = [value for row in rows if (value := row[column]) is not None]
        means[column] = fmean(values) if len(values) == len(rows) else None
    return {**means, "sign_probability": None}
