"""Compute all panels, each in a separate process."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.lab.experiments.critiques.panel import Size
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import facts, paragraph
from pyrodrop.files import Record
from pyrodrop.names import known

PANELS = ("foong", "osband", "verdoja")  # files of this folder, the longest first


@with_job_options("jobs")
def run(
    job: JobOptions,
    *,
    preset: Size = "default",
    panels: list[str] = list(PANELS),  # noqa: B006
    out: Path = Path("runs/critiques"),
) -> dict[str, Any]:
    """Compute the panels.

    Args:
        preset: default takes minutes on two cores; quick has networks that are too small and short to show anything,
            long samples the two-layer posterior of Foong et al. too, for hours.
        panels: which papers, by first author.
        out: folder for results.json and the finished panels: a run that was interrupted continues there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a panel is unknown.
    """
    names = tuple(known(name, PANELS, "panel") for name in panels)
    if not names:
        raise ValueError(f"panels needs at least one of {', '.join(PANELS)}; got none")
    start = time.perf_counter()
    with Experiment.begin("critiques", out, job, {"preset": preset}) as experiment:
        cells = experiment.cells(_checked)
        order = [name for name in PANELS if name in names or cells.file(name).exists()]
        done = experiment.measure(_timed, order, cells, size=preset, seed=job.seed)
        for kept in done.values():
            paragraph(f"\n{kept['title']}")
            facts(kept["facts"])
        panels_by_name = {name: {key: kept[key] for key in ("title", "tables", "facts")} for name, kept in done.items()}
        seconds = {name: kept["seconds"] for name, kept in done.items()} | {"in all": time.perf_counter() - start}
        return experiment.write({"panels": panels_by_name, "seconds": seconds})


def _timed(name: str, *, device: torch.device, progress: bool | None, size: Size, seed: int) -> dict[str, Any]:
    """One panel as JSON, with its duration in seconds."""
    start = time.perf_counter()
    module = importlib.import_module(f"pyrodrop.analysis.lab.experiments.critiques.{name}")
    return {**vars(module.panel(size, seed)), "seconds": time.perf_counter() - start}


def _checked(record: Record) -> None:
    record.text("title")
    for key in ("tables", "facts"):
        record.record(key)
