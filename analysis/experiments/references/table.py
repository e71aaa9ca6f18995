"""The distances of all posteriors from one reference, as a table.

    NAME             mean over the single fits; its s.e. is the mean of theirs, which is at least that of the mean
    ensemble NAME    the equal mixture of these fits

Every single fit's row is kept beside the table, so that the spread over starts can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pyrodrop.analysis.comparison.comparison import Comparison, compare
from pyrodrop.analysis.reports.score_table import best_first
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Predicts
from pyrodrop.training.replicates import Replicates

BY: Literal["total_variation"] = "total_variation"
Row = dict[str, float | None]


@dataclass(frozen=True)
class Table:
    """The comparison, whose rows are means and ensembles, and the rows of single fits by posterior."""

    comparison: Comparison
    members: dict[str, list[Row]]


def distance_table(
    fits: Mapping[str, Replicates], test: Dataset, reference: Predicts, *, num_samples: int, seed: int
) -> Table:
    """Compare every fit, and every ensemble, with the reference."""
    runs: dict[str, Any] = {f"{name}/{i}": fit for name, many in fits.items() for i, fit in enumerate(many)}
    runs |= {f"ensemble {name}": many for name, many in fits.items()}
    found = compare(runs, test, BY, reference=reference, num_samples=num_samples, seed=seed)
    members = {name: [found.rows[f"{name}/{i}"] for i in range(len(many))] for name, many in fits.items()}
    rows = {name: _mean(own) for name, own in members.items()}
    rows |= {f"ensemble {name}": found.rows[f"ensemble {name}"] for name in fits}
    notes = [note for note in found.notes if "/" not in note.split(":")[0]]  # not those on single fits
    notes.append("ensemble: the equal mixture of all fits of a posterior; the other rows are means over these fits")
    return Table(Comparison(BY, best_first(rows, BY, smallest=True), notes, found.reference), members)


def _mean(rows: list[Row]) -> Row:
    """The mean of every column; None where a fit has no such number, and for the probability of a sign."""
    means: Row = {}
    for column in rows[0]:
        values = [value for row in rows if (value := row[column]) is not None]
        means[column] = fmean(values) if len(values) == len(rows) else None
    return {**means, "sign_probability": None}
