"""The sections of the page *What helps*: a fault and its remedies on one problem, for several seeds, with core-seconds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyrodrop import arguments
from pyrodrop.analysis.experiments.critiques.panel import Size
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.reports import generated
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.analysis.zoo.references import FOLDER
from pyrodrop.files import Record
from pyrodrop.names import known

SECTIONS = (
    "spread",
    "rates",
    "bounds",
    "networks",
)  # files of this folder, with TITLE and measure(size, seed)
APART = 1000  # difference between seeds, so that no two repetitions have the same data set, start or noise
Rows = Mapping[str, Mapping[str, float]]


@with_job_options("jobs")
def run(
    job: JobOptions,
    *,
    preset: Size = "default",
    sections: list[str] = list(SECTIONS),  # noqa: B006
    seeds: int = 3,
    out: Path = Path("runs/remedies"),
) -> dict[str, Any]:
    """Measure faults and remedies with several seeds, and print a table for each section.

    Args:
        preset: default takes minutes of a core for every seed; quick has trainings that are too short to show anything.
        sections: which problems.
        seeds: number of repetitions, each with data, starts and noise of its own.
        out: folder for results.json and the finished cells: an interrupted run continues there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a section is unknown.
    """
    names = tuple(known(name, SECTIONS, "section") for name in sections)
    seeds = arguments.count(seeds, "seeds", "the number of repetitions")
    with Experiment.begin("remedies", out, job, {"preset": preset, "seeds": seeds}) as experiment:
        cells = experiment.cells(_checked, lambda name: {"name": name, "preset": preset, "seed": job.seed})
        parts = [f"{name}-{number}" for name in names for number in range(seeds)]
        done = experiment.measure(_measured, parts, cells, size=preset, seed=job.seed)
        measured = {name: _joined([done[f"{name}-{number}"] for number in range(seeds)]) for name in names}
        tables = [
            text_table(f"{_section(name).TITLE}: mean (least to most of the seeds)", rows_of(rows))
            for name, rows in measured.items()
        ]
        command = f"pyrodrop run remedies --sections {' '.join(names)} --seeds {seeds} --seed {job.seed}"
        return experiment.write({"sections": measured, "command": command}, *tables, threads=1)


def _measured(name: str, *, device: torch.device, progress: bool | None, size: Size, seed: int) -> dict[str, Any]:
    """The rows of a section for one seed."""
    section, number = name.rsplit("-", 1)
    return {"rows": _section(section).measure(size, seed + APART * int(number))}


def _section(name: str) -> Any:
    return importlib.import_module(f"pyrodrop.analysis.experiments.remedies.{name}")


def _joined(parts: list[Any]) -> dict[str, dict[str, list[float]]]:
    """The numbers of all seeds, by row and column."""
    rows = [cell["rows"] for cell in parts]
    return {
        name: {column: [of_seed[name][column] for of_seed in rows] for column in row} for name, row in rows[0].items()
    }


def _checked(record: Record) -> None:
    """Check that a stored cell has rows."""
    rows = record.record("rows")
    for name in rows.content:
        rows.record(name)


def rows_of(rows: Mapping[str, Mapping[str, list[float]]]) -> list[list[str]]:
    """The numbers of a section as texts: a header, and a row for each method."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    return [["method", *columns]] + [
        [name, *(in_words(row[column]) if column in row else "" for column in columns)] for name, row in rows.items()
    ]


def text(section: str, path: Path = FOLDER / "remedies.json") -> str:
    """The table of a section of ``docs/what-helps.md``, in Markdown."""
    return f"\n{generated.table(rows_of(read_record(path).content['sections'][section]))}\n\n"


def in_words(values: list[float]) -> str:
    """Mean, smallest and largest value over the seeds, in three digits."""
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
