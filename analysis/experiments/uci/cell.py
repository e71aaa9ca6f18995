"""One cell of the UCI table: a posterior on all splits of a data set.

    validation   train on the first 80 % of every training split, at every point of the grid; log density of the last 20 %
    choice       for every split, the grid point with the largest mean log density
    test         train on the whole training split; RMSE of the mean of T functions and of single draws, a different one
                 for every row (one pass), and mean log density of the test split

A protocol without a grid tests its single point. The state of a cell is written atomically after each fit, so that an
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

from pyrodrop.analysis.experiments.uci.columns import COLUMNS
from pyrodrop.analysis.experiments.uci.plan import Noise, Part, Penalty, Plan, Posterior, Precision
from pyrodrop.analysis.experiments.uci.process import PROCESSES
from pyrodrop.analysis.experiments.uci.protocol import PROTOCOLS, SETTINGS, VALIDATION, Point
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.folder import Cells
from pyrodrop.data import Dataset, Splits, uci
from pyrodrop.data.splits import standardized
from pyrodrop.files import Record
from pyrodrop.metrics import rmse
from pyrodrop.prediction.prediction import Predicts

POSTERIORS: Mapping[str, Posterior] = {**COLUMNS, **PROCESSES}
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
    precision: Precision
    penalty: Penalty
    splits: int
    seed: int

    @property
    def column(self) -> Posterior:
        return POSTERIORS[self.guide]

    @property
    def noise(self) -> Noise:
        """The kind of noise; a ValueError if the posterior does not support it."""
        noises = self.column.noises
        if self.precision != "auto" and self.precision not in noises:
            raise ValueError(f"precision of {self.guide} is auto or {', '.join(noises)}; got {self.precision}")
        return noises[0] if self.precision == "auto" else self.precision

    @property
    def name(self) -> str:
        return f"{self.data}/{self.guide}"

    def plan(self, device: torch.device) -> Plan:
        protocol = PROTOCOLS[self.protocol]
        hidden = (SETTINGS[self.data].hidden,) * protocol.layers
        return Plan(protocol.epochs(self.data), protocol.batch, hidden, self.noise, self.penalty, self.seed, device)

    def points(self) -> list[Point]:
        """The points of the grid."""
        protocol, fixed = PROTOCOLS[self.protocol], self.noise == "grid"
        return protocol.points(self.data, fixed_precision=fixed, with_rate=self.column.with_rate)


def store(folder: Path, cells: Mapping[str, Cell]) -> Cells:
    """The stored results of cells by their names."""
    return Cells(folder, lambda name: asdict(cells[name]), checked)


def checked(record: Record) -> dict[str, Any]:
    """The results in a cell's file, for any settings.

    Raises:
        ValueError: the file is broken.
    """
    about = record.record("cell")
    for key in ("data", "guide", "protocol", "precision"):
        about.text(key)
    record.record("plan").text("precision")
    splits = about.number("splits")
    for metric in ("rmse", "log_density"):
        record.numbers(metric, int(splits or 0))
    record.number("seconds")
    return dict(record.content)


def run_cell(cell: Cell, folder: Path, device: torch.device, progress: bool | None) -> dict[str, Any]:
    """Train, choose, test, and write ``SET-GUIDE.json``; steps whose results are stored are not repeated."""
    results = store(folder, {cell.name: cell})
    done = results.kept(cell.name)
    if done is not None:
        return done
    table, points, plan = uci(cell.data), cell.points(), cell.plan(device)
    begun = Cells(folder, lambda name: asdict(cell), _check_begun)
    numbers, spent, validation = range(cell.splits), 0.0, None
    chosen = [0 for _ in numbers]
    if len(points) > 1:
        halves = [divided(table, split) for split in numbers]
        parts = [(Part(train, point), held_out) for train, held_out in halves for point in points]
        scores, spent = _scores(cell, "validation", parts, plan, begun, progress)
        values = [-math.inf if score is None else score.log_density for score in scores]
        validation = [values[s :: len(points)] for s in range(len(points))]
        chosen = [_best(values[len(points) * s : len(points) * (s + 1)]) for s in numbers]
    splits = [table[s] for s in numbers]
    parts = [(Part(split.train, points[c]), split.test) for split, c in zip(splits, chosen, strict=True)]
    tested, seconds = _scores(cell, "test", parts, replace(plan, seed=plan.seed + _TEST_SEED), begun, progress)
    if None in tested:
        number = tested.index(None)
        raise FloatingPointError(f"the loss of {cell.guide} on split {number} of {cell.data} stopped being finite")
    content = {
        "points": [asdict(point) for point in points],
        "validation": validation,
        "chosen": chosen,
        **{metric: [getattr(score, metric) for score in tested] for metric in Scores._fields},
        "plan": {
            "epochs": plan.epochs,
            "batch": plan.batch,
            "hidden": list(plan.hidden),
            "precision": plan.precision,
            "draws": _draws(cell),
        },
        "seconds": spent + seconds,
        "versions": versions(),
        "machine": machine(device),
    }
    content = results.keep(cell.name, content)
    for phase in ("validation", "test"):
        begun.file(f"{cell.name}.{phase}").unlink(missing_ok=True)
    return content


def _scores(
    cell: Cell,
    phase: str,
    parts: Sequence[tuple[Part, Dataset]],
    plan: Plan,
    begun: Cells,
    progress: bool | None,
) -> tuple[list[Scores | None], float]:
    """Train all parts in groups of `Posterior.at_once`, and score each on its rows; the score is None if training failed.

    Scores of an interrupted run are read from its file, with their seconds.
    """
    name = f"{cell.name}.{phase}"
    kept = begun.kept(name) or {"scores": [], "seconds": 0.0}
    scores, spent = [row and Scores(*row) for row in kept["scores"]], float(kept["seconds"])
    size = cell.column.at_once(len(parts[0][0].train), plan)
    while len(scores) < len(parts):
        start, first = time.perf_counter(), len(scores)
        group = parts[first : first + size]
        predictors = cell.column.predictors([part for part, _ in group], plan, first, progress)
        for number, (predictor, (_, rows)) in enumerate(zip(predictors, group, strict=True), plan.seed + first):
            scores.append(None if predictor is None else score(predictor, rows, _draws(cell), number))
        spent += time.perf_counter() - start
        begun.keep(name, {"scores": scores, "seconds": spent})
    return scores, spent


def _check_begun(record: Record) -> None:
    """Check that the file has three numbers per training, or null if it failed."""
    record.number("seconds")
    rows = record.content.get("scores")
    if not isinstance(rows, list):
        raise record.fault("must have a list as scores")
    for row in rows:
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


def _draws(cell: Cell) -> int:
    return cell.column.draws(PROTOCOLS[cell.protocol])


def _best(values: Sequence[float]) -> int:
    """Index of the largest value; a FloatingPointError if every training failed."""
    best = max(range(len(values)), key=values.__getitem__)
    if values[best] == -math.inf:
        raise FloatingPointError("no point of the grid could be trained: every loss stopped being finite")
    return best
