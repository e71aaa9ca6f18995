"""The common part of all jobs: a folder with settings, stored cells, and results with tables and figures.

    with Experiment.begin("solar", out, job, {"seeds": seeds}) as experiment:
        rows = experiment.measure(trained, names, numbers("rmse"))
        return experiment.write({"rows": rows}, table(rows), figure=figure(rows))

A cell is one part of a run, such as a posterior or a seed. Repeating the command computes the cells that are missing in its
folder, and writes the results again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import RichCast
from rich.table import Table

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.parallel import train_each
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.folder import Cells, run_folder
from pyrodrop.analysis.reports.job_options import JobOptions
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.analysis.reports.style import write_figure
from pyrodrop.analysis.reports.terminal import print_table, text_table
from pyrodrop.files import Record

Check = Callable[[Record], object]  # raises an error if a cell is not a valid result of its job


def numbers(*keys: str) -> Check:
    """A check that a cell has these numbers."""
    return lambda record: [record.number(key) for key in keys]


@dataclass
class Experiment:
    """One run of a job.

    Attributes:
        name: name of the job.
        folder: folder of its files.
        job: options of the run.
        settings: values that the results depend on, by the name of the option.
    """

    name: str
    folder: Path
    job: JobOptions
    settings: dict[str, Any]

    @classmethod
    @contextmanager
    def begin(cls, name: str, out: Path, job: JobOptions, settings: Mapping[str, Any]) -> Iterator[Experiment]:
        """The run in a folder, for the duration of the block; raises as `run_folder` does."""
        about = {"device": job.device.type, "seed": job.seed, **settings}
        with run_folder(out, name, about) as folder:
            yield cls(name, folder, job, about)

    def cells(
        self, check: Check, about: Callable[[str], Mapping[str, Any]] | None = None, where: str = "cells"
    ) -> Cells:
        """The stored cells of the run.

        Args:
            check: raises an error if a stored cell is not valid.
            about: settings of the cell of a name; its name and all settings of the run if None.
            where: subfolder of the cells.
        """
        return Cells(self.folder / where, about or (lambda name: {"name": name, **self.settings}), check)

    def measure(
        self, function: Callable[..., Mapping[str, Any]], names: Sequence[str], cells: Cells, /, **options: Any
    ) -> dict[str, Any]:
        """``function(name, device=..., progress=..., **options)`` of every cell by name; see `train_each` for processes."""
        return train_each(function, names, self.job, keep=cells, **options)

    def write(
        self,
        content: Mapping[str, Any],
        *tables: Table | RichCast,
        settings: Mapping[str, Any] | None = None,
        rows: Sequence[tidy.Row] = (),
        shown: Callable[[Sequence[float]], str] = tidy.mean_shown,
        threads: int | None = None,
        figures: Mapping[str, Figure] | None = None,
    ) -> dict[str, Any]:
        """Write results.json, a table of results and the figures, and print tables and the paths of the files.

        Args:
            content: content of results.json.
            tables: tables to print.
            rows: rows of ``NAME.csv``, which `tidy` merges, and of results.json; they are printed as one table per problem.
            shown: text of the numbers of several seeds.
            settings: further settings for results.json.
            threads: number of threads of the measurements, if not that of this process.
            figures: figures by the name of their file.

        Returns:
            The content of results.json, which also has settings, date, versions and machine.
        """
        written = {
            **content,
            **({"rows": list(rows)} if rows else {}),
            "settings": {**self.settings, **(settings or {})},
            "date": f"{date.today()}",
            "versions": versions() | content.get("versions", {}),
            "machine": machine(self.job.device) | ({"threads": threads} if threads else {}),
        }
        path = self.folder / "results.json"
        for name, figure in (figures or {}).items():
            write_figure(self.folder / f"{name}.png", figure)
        write_json(path, written)
        for table in tables:
            print_table(table)
        if rows:
            tidy.put(self.folder / f"{self.name}.csv", rows)
        for problem in dict.fromkeys(row["problem"] for row in rows):
            print_table(text_table(problem, tidy.pivot([row for row in rows if row["problem"] == problem], shown)))
        for name in figures or {}:
            print(f"figure: {self.folder / f'{name}.png'}")
        print(f"results: {path}")
        return written
