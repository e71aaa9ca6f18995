"""One cell of the UCI table: a posterior on all splits of a data set.

    validation   train on the first 80 % of every training split, at every point of the grid; log density of the last 20 %
    choice       for every split, the grid point with the largest mean log density
    test         train on the whole training split; RMSE of the mean of T functions and of single draws, a different one
                 for every row (one pass), and mean log density of the test split

A protocol without a grid tests its single point. The scores of a cell are written atomically after each fit, so that an
interrupted cell resumes and gives the same results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.uci.columns import POSTERIORS, Noise, Part, Penalty, Plan, Precision
from pyrodrop.analysis.lab.experiments.uci.protocol import PROTOCOLS, SETTINGS, VALIDATION, Point
from pyrodrop.analysis.reports.folder import Cells
from pyrodrop.data import Dataset, uci
from pyrodrop.data.splits import Splits, standardized
from pyrodrop.files import Record
from pyrodrop.metrics import rmse

_HELD = 4_000_000  # most function values at a time
_TEST_SEED = 100_000  # added to the seed for the trainings of the test


class Scores(NamedTuple):
    """Scores on the test rows of a split, in units of y."""

    rmse: float
    rmse_of_one_pass: float
    log_density: float


@dataclass(frozen=True)
class Cell:
    """Settings that determine the results of a cell."""

    data: str
    guide: str
    protocol: str
    precision: Precision = "auto"
    penalty: Penalty = "released"
    splits: int = 1
    seed: int = 0

    @property
    def noise(self) -> Noise:
        """The kind of noise; a ValueError if the posterior does not support it."""
        noises = POSTERIORS[self.guide].noises
        if self.precision != "auto" and self.precision not in noises:
            raise ValueError(f"precision of {self.guide} is auto or {', '.join(noises)}; got {self.precision}")
        return noises[0] if self.precision == "auto" else self.precision

    @property
    def method(self) -> str:
        """The name in tables: the posterior, with its noise and penalty if these are not the defaults."""
        parts = (self.guide, self.precision, self.penalty)
        return ", ".join(part for part in parts if part not in ("auto", "released"))

    def plan(self, device: torch.device) -> Plan:
        protocol = PROTOCOLS[self.protocol]
        hidden = (SETTINGS[self.data].hidden,) * protocol.layers
        return Plan(protocol.epochs(self.data), protocol.batch, hidden, self.noise, self.penalty, self.seed, device)

    def points(self) -> list[Point]:
        """The points of the grid."""
        protocol, fixed = PROTOCOLS[self.protocol], self.noise == "grid"
        return protocol.points(self.data, fixed_precision=fixed, with_rate=POSTERIORS[self.guide].with_rate)

    def store(self, folder: Path, check: Any = lambda record: record.records("rows")) -> Cells:
        """The files of this cell in the folder of a run."""
        return Cells(folder, lambda name: asdict(self), check)


def run_cell(cell: Cell, folder: Path, device: torch.device, progress: bool | None) -> dict[str, Any]:
    """Train, choose, test, and return the `rows` of the table of results, one per split.

    A column ``validation N`` has the log densities of the validation rows at the N-th point of the grid, and `chosen` the
    point that was chosen; `seconds` stands in the first row.
    """
    table, points, plan = uci(cell.data), cell.points(), cell.plan(device)
    numbers, spent = range(cell.splits), 0.0
    rows: list[tidy.Row] = [
        {"study": cell.protocol, "problem": cell.data, "method": cell.method, "seed": split} for split in numbers
    ]
    if len(points) > 1:
        halves = [divided(table, split) for split in numbers]
        parts = [(Part(train, point), held_out) for train, held_out in halves for point in points]
        scores, spent = _scores(cell, "validation", parts, plan, folder, progress)
        values = [-math.inf if score is None else score.log_density for score in scores]
        for s, row in enumerate(rows):
            of_split = values[len(points) * s : len(points) * (s + 1)]
            row |= {f"validation {n}": None if v == -math.inf else v for n, v in enumerate(of_split)}
            row["chosen"] = _best(of_split)
    splits = [table[s] for s in numbers]
    parts = [
        (Part(split.train, points[row.get("chosen", 0)]), split.test) for split, row in zip(splits, rows, strict=True)
    ]
    tested, seconds = _scores(cell, "test", parts, replace(plan, seed=plan.seed + _TEST_SEED), folder, progress)
    for number, (row, score) in enumerate(zip(rows, tested, strict=True)):
        if score is None:
            raise FloatingPointError(f"the loss of {cell.guide} on split {number} of {cell.data} stopped being finite")
        row |= score._asdict()
    rows[0]["seconds"] = spent + seconds
    for phase in ("validation", "test"):
        cell.store(folder).file(f"{cell.data}/{cell.guide}.{phase}").unlink(missing_ok=True)
    return {"rows": rows}


def _scores(
    cell: Cell, phase: str, parts: Sequence[tuple[Part, Dataset]], plan: Plan, folder: Path, progress: bool | None
) -> tuple[list[Scores | None], float]:
    """Train all parts in groups of `Column.at_once`, and score each on its rows; the score is None if training failed.

    Scores of an interrupted run are read from its file, with their seconds.
    """
    name, begun, column = f"{cell.data}/{cell.guide}.{phase}", cell.store(folder, _check_begun), POSTERIORS[cell.guide]
    kept = begun.kept(name) or {"scores": [], "seconds": 0.0}
    scores, spent = [row and Scores(*row) for row in kept["scores"]], float(kept["seconds"])
    size, draws = column.at_once(len(parts[0][0].train), plan), column.draws(PROTOCOLS[cell.protocol])
    while len(scores) < len(parts):
        start, first = time.perf_counter(), len(scores)
        group = parts[first : first + size]
        predictors = column.predictors([part for part, _ in group], plan, first, progress)
        for number, (predictor, (_, rows)) in enumerate(zip(predictors, group, strict=True), plan.seed + first):
            scores.append(None if predictor is None else score(predictor, rows, draws, number))
        spent += time.perf_counter() - start
        begun.keep(name, {"scores": scores, "seconds": spent})
    return scores, spent


def _check_begun(record: Record) -> None:
    """Check that the file has three numbers per training, or null if it failed."""
    record.number("seconds")
    if not isinstance(record.content.get("scores"), list):
        raise record.fault("must have a list as scores")
    for row in record.content["scores"]:
        if row is not None:
            Record(record.path, {"scores": row}, record.advice).numbers("scores", len(Scores._fields))


def divided(table: Splits, split: int) -> tuple[Dataset, Dataset]:
    """The training rows of a split in two parts: the first 80 %, and the last 20 %, standardised like the first."""
    rows = table.rows[split][0]
    first = int((1 - VALIDATION) * len(rows))
    train = standardized(table.x[rows[:first]], table.y[rows[:first]], f"split {split} of {table.name}")
    x, y = table.x[rows[first:]].float(), table.y[rows[first:]].float()
    return train, Dataset(x, y, inputs=train.inputs, targets=train.targets)


def score(predictor: Predicts, test: Dataset, draws: int, seed: int) -> Scores:
    """Scores of predictions with `draws` functions in raw units; rows are processed in chunks that fit into memory."""
    means, passes, densities = [], [], []
    for rows in torch.arange(len(test)).split(max(1, _HELD // draws)):
        prediction = predictor.predict(test.x[rows], draws, seed=seed)
        means.append(prediction.mean)
        passes.append(prediction.f[rows % len(prediction.f), torch.arange(len(rows)), :1])
        densities.append(prediction.log_density(test.y[rows]).double())
    log_density = float(torch.cat(densities).mean())
    return Scores(rmse(torch.cat(means), test.y), rmse(torch.cat(passes), test.y), log_density)


def _best(values: Sequence[float]) -> int:
    """Index of the largest value; a FloatingPointError if every training failed."""
    best = max(range(len(values)), key=values.__getitem__)
    if values[best] == -math.inf:
        raise FloatingPointError("no point of the grid could be trained: every loss stopped being finite")
    return best


def cells(protocol: str, path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of a protocol in a table of results by set and method, in the order of the sets.

    Each has its `settings` and, over splits, the `Scores`, the `chosen` points and the `validation` by point.
    """
    rows: dict[tuple[str, str], list[tidy.Row]] = {}
    for row in tidy.read(path):
        if row["study"] == protocol:
            rows.setdefault((row["problem"], row["method"]), []).append(row)
    order = sorted(rows, key=lambda key: (list(SETTINGS).index(key[0]), key[1]))
    return {key: _joined(protocol, *key, rows[key]) for key in order}


def _joined(protocol: str, name: str, method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    guide, *options = method.split(", ")
    precision, penalty = (
        next((o for o in options if o != "paper"), "auto"),
        "paper" if "paper" in options else "released",
    )
    settings = Cell(name, guide, protocol, precision, penalty, len(rows))  # type: ignore[arg-type]
    points = settings.points()
    return {
        "settings": settings,
        "points": points,
        "validation": [[row.get(f"validation {n}", -math.inf) for row in rows] for n in range(len(points))],
        "chosen": [int(row.get("chosen", 0)) for row in rows],
        "seconds": rows[0]["seconds"],
        **{score: [row[score] for row in rows] for score in Scores._fields if score in rows[0]},
    }
