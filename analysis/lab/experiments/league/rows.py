"""Distances of methods from the exact posterior of a problem, from the stored draws of `pyrodrop.zoo.load("exact/NAME")`.

    wasserstein       W_2 of f at a test point over the mean standard deviation of f, mean over points
    wasserstein se    standard error of its mean over fits from different starts; none for a single one
    spread, away      standard deviation of f over the exact posterior's, median over test points, and over points three
                      times as far from the mean as training inputs (`places`)
    covariance, total_variation, to_reference    see `pyrodrop.analysis.comparison.to_reference`

Every method has at most as many draws as are stored. The references contain the rows of our posteriors, means over single
fits and their equal mixtures, and those of other packages: studies ``league`` and ``peers`` of ``distances.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrodrop import zoo
from pyrodrop.analysis.comparison.between_points import without_shift
from pyrodrop.analysis.comparison.spreads import spread_ratio
from pyrodrop.analysis.lab.experiments.peers.experiment import Judge, stored
from pyrodrop.analysis.lab.experiments.references.stored import facts
from pyrodrop.analysis.reports.score_table import best_first, mean_and_error
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.sampling import Sampled
from pyrodrop.zoo.exact import PROBLEMS

COLUMNS = ("wasserstein", "wasserstein se", "spread", "away", "covariance", "total_variation", "to_reference")
AGAIN = ("pyrodrop, point", "pyrodrop, MC dropout .05", "pyrodrop, mean field", "pyrodrop, low rank 4",
         "pyrodrop, ensemble of 5 points")  # of peers: posteriors of the league after fewer steps  # fmt: skip
Row = dict[str, float | None]


class Referee:
    """Rows of the league of one problem.

    Attributes:
        name: of the problem.
        train, test: the data, in their units.
        sampled: the draws of the exact posterior.
        draws: the number of its draws, of which every method has at most as many.
        away: inputs away from the training data, in the units of the data.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.train, self.test = PROBLEMS[name].data()
        self.sampled: Sampled = zoo.load(f"exact/{name}")  # type: ignore[assignment]
        self.draws: int = self.sampled.chains * self.sampled.draws
        observed = PROBLEMS[name].observed
        judged = self.test if observed else Dataset(self.test.x, torch.tensor(facts(name)["y"])[:, None])
        self.judge = Judge(self.sampled, judged, self.draws, seed)
        self.away: Tensor = away_from(self.train)

    def row(self, method: str, prediction: Prediction, away: Tensor | None = None) -> Row:
        """The row of a method: its prediction at the test points and, if not None, f at `self.away`, ``[S, P, outputs]``.

        Values that are not finite are None.
        """
        values = self.judge(method, prediction)
        row = {c: value if (value := values.get(c)) is not None and math.isfinite(value) else None for c in COLUMNS}
        if away is not None:
            f, exact = away, self.sampled.predict(self.away, self.draws).f
            if not self.train.y.is_floating_point():
                f, exact = without_shift(f), without_shift(exact)
            row["away"] = float(spread_ratio(f, exact).nanquantile(0.5))
        return row


def away_from(train: Dataset) -> Tensor:
    """Inputs away from the training inputs x_n: mean + 3 (x_n - mean), the half that is farthest from one, at most 100.

    Distances are those of standardised inputs, in every column that varies.
    """
    x = train.x.double()
    mean, sd = x.mean(0), x.std(0)
    scale, points = torch.where(sd > 0, sd, 1.0), mean + 3 * (x - mean)
    distance = torch.cdist((points - mean) / scale, (x - mean) / scale).amin(1)
    return points[distance.argsort(descending=True)[: min(100, len(x) // 2)]].to(train.x.dtype)


def mean_row(rows: Sequence[Row]) -> Row:
    """The mean of rows of fits from different starts, with the standard error of the mean W2."""
    known = {column: [value for row in rows if (value := row[column]) is not None] for column in COLUMNS}
    mean: Row = {column: sum(values) / len(values) if values else None for column, values in known.items()}
    return mean | {"wasserstein se": mean_and_error(known["wasserstein"])[1]}


def league(name: str) -> dict[str, Row]:
    """The stored rows of a problem by method, the nearest first."""
    rows = {
        method: {column: row.get(column) for column in COLUMNS}
        for (problem, method), row in (stored("league") | stored("peers")).items()
        if problem == name and "fault" not in row and method not in (*AGAIN, "chance")
    }
    return best_first(rows, "wasserstein", smallest=True)


def chance(name: str) -> Row:
    """The distances between two halves of the stored draws, each with half as many draws as a method."""
    row = stored("peers")[name, "chance"]
    return {column: row.get(column) for column in COLUMNS}
