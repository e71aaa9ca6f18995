"""One cell of the UCI table: a posterior on all splits of a data set.

    validation   train on the first 80 % of every training split, at every point of the grid; log density of the last 20 %
    choice       for every split, the grid point with the largest mean log density
    test         train on the whole training split; RMSE of the mean of T functions, of one pass through the network with
                 masks of its own for every row, and mean log density of the test split

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
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.folder import Cells
from pyrodrop.data import Dataset, Splits, uci
from pyrodrop.data.splits import standardized
from pyrodrop.devices import processor
from pyrodrop.json_files import Record
from pyrodrop.metrics import rmse
from pyrodrop.prediction.prediction import Predicts

POSTERIORS: Mapping[str, Posterior] = {**COLUMNS, **PROCESSES}
_HELD = 4_000_000  # function values at a time
_TEST_SEED = 100_000  # added to the seed where the trainings for the test begin


class Scores(NamedTuple):
    """Of the test rows of a split, in units of y."""

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
        """What the noise is; a ValueError if this posterior cannot have it."""
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
        """The grid."""
        protocol, fixed = PROTOCOLS[self.protocol], self.noise == "grid"
        return protocol.points(self.data, fixed_precision=fixed, with_rate=self.column.with_rate)


def store(folder: Path, cells: Mapping[str, Cell]) -> Cells:
    """The results of cells by their names."""
    return Cells(folder, lambda name: asdict(cells[name]), checked)


def checked(record: Record) -> dict[str, Any]:
    """The results in a cell's file, whatever its settings.

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
    """Train, choose, test, and write ``SET-GUIDE.json``; what of that is already there is not done again."""
    results = store(folder, {cell.name: cell})
    done = results.kept(cell.name)
    if done is not None:
        return done
    table, points, plan = uci(cell.data), cell.points(), cell.plan(device)
    numbers = range(cell.splits)
    validation: list[float] = []
    begun = Cells(folder, lambda name: asdict(cell), _check_begun)
    if len(points) > 1:
        validation, spent = _validate(cell, table, points, plan, begun, progress)
    else:
        spent = 0.0
    chosen = [_best(validation[len(points) * s : len(points) * (s + 1)]) if validation else 0 for s in numbers]
    start = time.perf_counter()
    splits = [table[s] for s in numbers]
    parts = [Part(split.train, points[c]) for split, c in zip(splits, chosen, strict=True)]
    scores = _scores(
        cell, parts, [split.test for split in splits], replace(plan, seed=plan.seed + _TEST_SEED), progress
    )
    for number, score in enumerate(scores):
        if score is None:
            raise FloatingPointError(f"the loss of {cell.guide} on split {number} of {cell.data} stopped being finite")
    content = {
        "points": [asdict(point) for point in points],
        "validation": [validation[s :: len(points)] for s in range(len(points))] if validation else None,
        "chosen": chosen,
        **{metric: [getattr(score, metric) for score in scores if score] for metric in Scores._fields},
        "plan": {
            "epochs": plan.epochs,
            "batch": plan.batch,
            "hidden": list(plan.hidden),
            "precision": plan.precision,
            "draws": _draws(cell),
        },
        "seconds": spent + time.perf_counter() - start,
        "versions": versions(),
        "machine": {"processor": processor(), "device": device.type, "threads": torch.get_num_threads()},
    }
    content = results.keep(cell.name, content)
    begun.file(_begun(cell)).unlink(missing_ok=True)
    return content


def _validate(
    cell: Cell, table: Splits, points: Sequence[Point], plan: Plan, begun: Cells, progress: bool | None
) -> tuple[list[float], float]:
    """Validation log densities by split and point, and the seconds they took; -inf where training failed."""
    kept = begun.kept(_begun(cell)) or {"log_density": [], "seconds": 0.0}
    log_densities, spent = (
        [-math.inf if value is None else float(value) for value in kept["log_density"]],
        float(kept["seconds"]),
    )
    halves = [divided(table, split) for split in range(cell.splits)]
    parts = [Part(train, point) for train, _ in halves for point in points]
    held_out = [test for _, test in halves for _ in points]
    size = cell.column.at_once(len(parts[0].train), plan)
    while len(log_densities) < len(parts):
        start = time.perf_counter()
        group = slice(len(log_densities), len(log_densities) + size)
        scores = _scores(cell, parts[group], held_out[group], plan, progress, len(log_densities))
        log_densities += [-math.inf if score is None else score.log_density for score in scores]
        spent += time.perf_counter() - start
        values = [None if value == -math.inf else value for value in log_densities]
        begun.keep(_begun(cell), {"log_density": values, "seconds": spent})
    return log_densities, spent


def _begun(cell: Cell) -> str:
    """The name of what a run that was broken off has validated."""
    return f"{cell.name}.validation"


def _check_begun(record: Record) -> None:
    """Numbers, with null where training failed."""
    record.number("seconds")
    values = record.content.get("log_density")
    if not isinstance(values, list):
        raise record.fault("must have a list of numbers as log_density")
    if values:
        finite = {"log_density": [0.0 if value is None else value for value in values]}
        Record(record.path, finite, record.advice).numbers("log_density")


def divided(table: Splits, split: int) -> tuple[Dataset, Dataset]:
    """The training rows of a split in two: the last 20 % validate, standardised by the others."""
    rows = table.rows[split][0]
    first = int((1 - VALIDATION) * len(rows))
    train = standardized(table.x[rows[:first]], table.y[rows[:first]], f"split {split} of {table.name}")
    x, y = table.x[rows[first:]].float(), table.y[rows[first:]].float()
    return train, Dataset(x, y, inputs=train.inputs, targets=train.targets)


def _scores(
    cell: Cell, parts: Sequence[Part], tests: Sequence[Dataset], plan: Plan, progress: bool | None, first: int = 0
) -> list[Scores | None]:
    """Train all parts, as many at once as is sensible, and score each; None for one that failed."""
    size = cell.column.at_once(len(parts[0].train), plan)
    scores: list[Scores | None] = []
    for begin in range(0, len(parts), size):
        group = parts[begin : begin + size]
        predictors = cell.column.predictors(group, plan, first + begin, progress)
        for number, (predictor, test) in enumerate(zip(predictors, tests[begin : begin + size], strict=True)):
            seed = plan.seed + first + begin + number
            scores.append(None if predictor is None else score(predictor, test, _draws(cell), seed))
    return scores


def score(predictor: Predicts, test: Dataset, draws: int, seed: int) -> Scores:
    """Scores of `draws` functions in raw units; rows in chunks that fit into memory."""
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
    """Number of the largest; a FloatingPointError if every training failed."""
    best = max(range(len(values)), key=values.__getitem__)
    if values[best] == -math.inf:
        raise FloatingPointError("no point of the grid could be trained: every loss stopped being finite")
    return best
