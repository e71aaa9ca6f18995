"""The sections of the page *What helps*: a fault and its remedies on one problem, for several seeds, with core-seconds."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyrodrop import checks
from pyrodrop.analysis.lab import RESULTS, generated, tidy
from pyrodrop.analysis.lab.experiments.critiques.panel import Size
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.checks import known

SECTIONS = ("spread", "rates", "bounds", "networks")  # files of this folder, with TITLE and measure(size, seed)
APART = 1000  # difference between seeds, so that no two repetitions have the same data set, start or noise
STORED = RESULTS / "remedies.csv"


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
        out: folder for results.json, remedies.csv and the finished cells: an interrupted run continues there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a section is unknown.
    """
    names = tuple(known(name, SECTIONS, "section") for name in sections)
    seeds = checks.count(seeds, "seeds", "the number of repetitions")
    with Experiment.begin("remedies", out, job, {"preset": preset, "seeds": seeds}) as experiment:
        cells = experiment.cells(
            lambda record: record.records("rows"), lambda name: {"name": name, "preset": preset, "seed": job.seed}
        )
        parts = [f"{name}-{number}" for name in names for number in range(seeds)]
        done = experiment.measure(_measured, parts, cells, size=preset, seed=job.seed)
        return experiment.write(
            {}, rows=[row for part in parts for row in done[part]["rows"]], shown=in_words, threads=1
        )


def _measured(name: str, *, device: torch.device, progress: bool | None, size: Size, seed: int) -> dict[str, Any]:
    """The rows of a section for one seed."""
    section, number = name.rsplit("-", 1)
    module = importlib.import_module(f"pyrodrop.analysis.lab.experiments.remedies.{section}")
    table = module.measure(size, seed + APART * int(number))
    key = {"study": "remedies", "problem": section, "seed": int(number)}
    return {"rows": [key | {"method": method, **scores} for method, scores in table.items()]}


def text(section: str, path: Path = STORED) -> str:
    """The table of a section, in Markdown, of ``analysis/lab/results/README.md``."""
    rows = (row for row in tidy.read(path) if row["problem"] == section)
    return f"\n{generated.table(tidy.pivot(rows, in_words))}\n\n"


def in_words(values: Sequence[float]) -> str:
    """Mean, smallest and largest value over the seeds, in three digits."""
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
