"""The three critiques, each in a process of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.lab.experiments.critiques.panel import Size
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.checks import known

PANELS = ("foong", "osband", "verdoja")  # files of this folder, the longest first


@with_job_options("jobs")
def run(
    job: JobOptions,
    *,
    preset: Size = "default",
    panels: list[str] = list(PANELS),  # noqa: B006
    out: Path = Path("runs/critiques"),
) -> dict[str, Any]:
    """Compute the tables of the critiques.

    Args:
        preset: default takes minutes on two cores; quick has networks that are too small and short to show anything.
        panels: which papers, by first author.
        out: folder for results.json, critiques.csv and the finished panels: a run that was interrupted continues there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a panel is unknown.
    """
    names = tuple(known(name, PANELS, "panel") for name in panels)
    if not names:
        raise ValueError(f"panels needs at least one of {', '.join(PANELS)}; got none")
    with Experiment.begin("critiques", out, job, {"preset": preset}) as experiment:
        cells = experiment.cells(lambda record: record.records("rows"))
        order = [name for name in PANELS if name in names or cells.file(name).exists()]
        done = experiment.measure(_rows, order, cells, size=preset, seed=job.seed)
        return experiment.write({}, rows=[row for cell in done.values() for row in cell["rows"]])


def _rows(name: str, *, device: torch.device, progress: bool | None, size: Size, seed: int) -> dict[str, Any]:
    """The rows of one panel."""
    module = importlib.import_module(f"pyrodrop.analysis.lab.experiments.critiques.{name}")
    return {
        "rows": [
            {"study": name, "problem": problem, "method": method, **scores}
            for problem, table in module.panel(size, seed).items()
            for method, scores in table.items()
        ]
    }
