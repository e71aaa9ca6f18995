"""Read runs of experiments from their folders: results.json, and figures and draws.nc if the job writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.table import Table

from pyrodrop.analysis.reports.score_table import best_first, score_table

_COLUMNS = {
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
        folder: the run's folder.
        results: the content of results.json.
        figures: paths of the PNG figures, in alphabetical order.
        draws: path of draws.nc; None if there is none.
    """

    folder: Path
    results: dict[str, Any]
    figures: tuple[Path, ...]
    draws: Path | None

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """Scores by model.

        Raises:
            ValueError: the job of this run writes no table of models.
        """
        found = self.results.get("models")
        if not isinstance(found, dict):
            raise ValueError(
                f"{self.folder} must be a run with a table of models, such as one of co2; it has {', '.join(self.results)}"
            )
        return found

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.results.get("settings", {}).get("data", "unknown data"))

    def by_observation(self, name: str) -> dict[str, Any]:
        """A quantity per held-out observation (``log_density`` or ``pit``), by model; empty if the run did not store it."""
        if self.draws is None:
            return {}
        with xr.open_datatree(self.draws, engine="h5netcdf") as tree:
            named = {model: tree.children[model].children for model in self.models if model in tree.children}
            groups = {model: children["predictions"] for model, children in named.items() if "predictions" in children}
            return {model: np.array(group[name]) for model, group in groups.items() if name in group}


def read_run(folder: str | Path) -> Run:
    """Read the run in a folder.

    Raises:
        FileNotFoundError: the folder has no results.json.
        ValueError: results.json is not a valid JSON object.
    """
    folder = Path(folder)
    path = folder / "results.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"the folder of a run must have a results.json, as pyrodrop run JOB --out writes it; got {folder}"
        )
    try:
        results = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(results, dict):
        raise ValueError(f"{path} must be a JSON object; got a {type(results).__name__}")
    draws = folder / "draws.nc"
    return Run(folder, results, tuple(sorted(folder.glob("*.png"))), draws if draws.is_file() else None)


@dataclass(frozen=True)
class RunTable:
    """Models of several runs ordered by held-out log density, the best first.

    Attributes:
        rows: scores by ``folder/model``; if every run stored log densities per observation, also the paired difference to
            the best model with its standard error.
        data: name of the common data set.
    """

    rows: dict[str, dict[str, float | None]]
    data: str

    def __rich__(self) -> Table:
        return score_table(
            self.rows,
            title=f"{self.data}, by held-out log density",
            caption="Means per observation; s.e. of paired differences over observations. ELBOs are in each run's report: "
            "they compare within one convention only.",
            corner="run/model",
            headers={column: column.replace("_", " ") for row in self.rows.values() for column in row},
            forms=_COLUMNS,
            form=".2f",
        )


def compare_runs(runs: Sequence[Run]) -> RunTable:
    """One table of all models of all runs.

    Raises:
        ValueError: no runs, runs on different data, or without scores of held-out observations.
    """
    if not runs:
        raise ValueError("compare needs the folders of runs: pyrodrop compare RUN_DIR...")
    sets = {run.data for run in runs}
    if len(sets) > 1:
        raise ValueError(f"runs must have the same data to be compared; these have {', '.join(sorted(sets))}")
    names = _names(runs)
    rows: dict[str, dict[str, float | None]] = {}
    densities: dict[str, Any] = {}
    for run, short in zip(runs, names, strict=True):
        densities |= {f"{short}/{model}": values for model, values in run.by_observation("log_density").items()}
        for model, scores in run.models.items():
            rows[f"{short}/{model}"] = {column: scores.get(column) for column in _COLUMNS}
    if all(row["log_density"] is None for row in rows.values()):
        raise ValueError(f"these runs have no held-out log densities to compare: {', '.join(names)}")
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
