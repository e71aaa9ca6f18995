"""Read runs of experiments from their folders: results.json, and draws.nc if the job writes it.

A folder may come from somebody else, so everything that is used is checked here: types, finite numbers
and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.table import Table

from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.reports.score_table import best_first, score_table
from pyrodrop.failed import Failed
from pyrodrop.files import Record

_MOST_VALUES = 10**8  # of a variable of draws.nc
_ADVICE = "pyrodrop run writes it: run the job again"

_HEADERS = {
    "log_density": "log density",
    "rmse": "RMSE",
    "crps": "CRPS",
    "coverage_50": "in 50%",
    "coverage_95": "in 95%",
    "difference": "to the best",
    "difference_se": "s.e.",
}
FORMS = {
    "log_density": ".2f",
    "rmse": ".2f",
    "crps": ".2f",
    "coverage_50": ".0%",
    "coverage_95": ".0%",
    "seconds": ".1f",
}


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        draws: path of draws.nc; None if there is none.
    """

    folder: Path
    results: dict[str, Any]
    draws: Path | None

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """Scores by model.

        Raises:
            ValueError: the run has no table of models, or one without models or with scores that are not numbers.
        """
        record = self._record
        if "models" not in self.results:
            raise Failed(
                f"{self.folder} must be a run with a table of models, such as one of co2; it has {', '.join(self.results)}"
            )
        models = record.record("models")
        if not models.content:
            raise record.fault("must have at least one model in models; it has none")
        for name in models.content:
            row = models.record(name)
            for column in FORMS:
                row.number(column, optional=True)
        return models.content

    @property
    def data(self) -> str:
        """The name of the data set."""
        settings = self._record.record("settings") if "settings" in self.results else None
        return "unknown data" if settings is None or "data" not in settings.content else settings.text("data")

    def checked(self) -> Run:
        """Check the name of the data and the table of models, if the run has them, and return the run."""
        _ = self.data, self.models if "models" in self.results else None
        return self

    @property
    def _record(self) -> Record:
        return Record(self.folder / "results.json", self.results, _ADVICE)

    def by_observation(self, name: str) -> dict[str, Any]:
        """A quantity per held-out observation (``log_density`` or ``pit``), by model; empty if the run did not store it.

        Raises:
            ValueError: draws.nc is not a netCDF file, or the quantity is not a list of finite numbers.
        """
        if self.draws is None:
            return {}
        models = self.models
        try:
            with h5py.File(self.draws) as file:
                places = {model: f"{model}/predictions/{name}" for model in models}
                return {model: self._values(file, place) for model, place in places.items() if place in file}
        except Failed:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # raised by h5py for a broken file
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise Failed(f"{self.draws} cannot be read as the netCDF file of a run: {reason}; {_ADVICE}") from error

    def _values(self, file: h5py.File, place: str) -> Any:
        """The values of a variable of draws.nc: finite numbers in one dimension, stored in this file."""
        stored = file[place]
        if not isinstance(stored, h5py.Dataset) or stored.file.id != file.id or stored.is_virtual or stored.external:
            raise Failed(f"{self.draws} must have numbers of its own as {place}; it has something else; {_ADVICE}")
        if stored.ndim != 1 or stored.dtype.kind not in "fiu" or not 2 <= stored.size <= _MOST_VALUES:
            size = f"shape {list(stored.shape or ())} and type {stored.dtype}"
            raise Failed(f"{self.draws} must have numbers by observation as {place}; it has {size}; {_ADVICE}")
        values = np.array(stored)
        if not np.isfinite(values).all():
            raise Failed(f"{self.draws} has values of {place} that are not finite; {_ADVICE}")
        return values


def read_run(folder: str | Path) -> Run:
    """Read the run in a folder.

    Raises:
        FileNotFoundError: the folder has no results.json.
        ValueError: results.json is not valid, or draws.nc is not a file.
    """
    folder = Path(folder)
    path, draws = folder / "results.json", folder / "draws.nc"
    if not path.exists():
        inside = [each.parent for each in sorted(folder.glob("*/results.json"))]
        raise FileNotFoundError(
            f"the folder of a run must have a results.json, as pyrodrop run JOB --out writes it; got {folder}"
            f"{', in which the runs are ' * bool(inside)}{', '.join(map(str, inside[:3]))}"
        )
    results = dict(read_record(path, _ADVICE).content)
    if draws.exists() and not draws.is_file():
        raise Failed(f"{draws} is not a file; {_ADVICE}")
    return Run(folder, results, draws if draws.exists() else None).checked()


@dataclass(frozen=True)
class RunTable:
    """Models of several runs ordered by held-out log density, the best first.

    Attributes:
        rows: scores by ``folder/model``; if every model has log densities of equally many observations, also the paired
            difference to the best model with its standard error.
    """

    rows: dict[str, dict[str, float | None]]
    data: str

    def __rich__(self) -> Table:
        empty = {c for c in FORMS if all(row.get(c) is None for row in self.rows.values())}
        return score_table(
            {name: {c: value for c, value in row.items() if c not in empty} for name, row in self.rows.items()},
            title=f"{self.data}, by held-out log density",
            caption="Means per observation; s.e. of paired differences over observations. ELBOs are in each "
            "run's results.json: they compare within one convention only.",
            corner="run/model",
            headers=_HEADERS,
            forms=FORMS,
            form=".2f",
        )


def compare_runs(runs: Sequence[Run]) -> RunTable:
    """One table of all models of all runs.

    Raises:
        ValueError: no runs, runs on different data, or without scores of held-out observations.
    """
    if not runs:
        raise ValueError("runs must be at least one run; got none")
    sets = {run.data for run in runs}
    if len(sets) > 1:
        raise Failed(f"runs must have the same data to be compared; these have {', '.join(sorted(sets))}")
    names = _names(runs)
    rows: dict[str, dict[str, float | None]] = {}
    densities: dict[str, Any] = {}
    for run, short in zip(runs, names, strict=True):
        densities |= {f"{short}/{model}": values for model, values in run.by_observation("log_density").items()}
        for model, scores in run.models.items():
            rows[f"{short}/{model}"] = {column: scores.get(column) for column in FORMS}
    if all(row["log_density"] is None for row in rows.values()):
        raise Failed(f"these runs have no held-out log densities to compare: {', '.join(names)}")
    rows = best_first(rows, "log_density")
    if rows.keys() == densities.keys() and len({len(values) for values in densities.values()}) == 1:
        best = densities[next(iter(rows))]
        for name in rows:
            difference = densities[name] - best
            se = float(difference.std(ddof=1) / math.sqrt(len(difference)))
            rows[name] |= {"difference": float(difference.mean()), "difference_se": se}
    return RunTable(rows, sets.pop())


def _names(runs: Sequence[Run]) -> list[str]:
    """The names of the folders, or their paths if two names are equal."""
    short = [run.folder.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.folder) for run in runs]
