"""All panels, side by side in processes, and the page that joins them."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.experiments.critiques.page import write_page
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import facts, paragraph
from pyrodrop.files import whole
from pyrodrop.json_files import Record
from pyrodrop.names import known

PANELS = ("foong", "osband", "hron_prior", "hron_quasi_kl", "le_folgoc", "verdoja", "wenzel", "balabanov")
_LONGEST_FIRST = ("foong", "wenzel", "balabanov", "verdoja", "osband", "le_folgoc", "hron_prior", "hron_quasi_kl")


@with_job_options("jobs")
def run(
    job: JobOptions,
    *,
    preset: Size = "default",
    panels: list[str] = list(PANELS),  # noqa: B006
    out: Path = Path("runs/critiques"),
) -> dict[str, Any]:
    """Compute the panels and write one page.

    Args:
        preset: default takes minutes on two cores; quick has networks that are too small and short to show anything,
            long samples the two-layer posterior of Foong et al. too, for hours.
        panels: which papers, by first author.
        out: folder for results.json, page.html, a figure per panel, and the finished panels: a run that was broken off
            goes on there.

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
        folder, cells = experiment.folder, experiment.cells(Panel.from_record)
        order = [name for name in _LONGEST_FIRST if name in names or cells.file(name).exists()]
        done = experiment.measure(_timed, order, cells, size=preset, seed=job.seed)
        made = {name: Panel.from_record(Record(cells.file(name), done[name])) for name in PANELS if name in done}
        content = {
            "panels": {name: panel.content for name, panel in made.items()},
            "seconds": {name: done[name]["seconds"] for name in made} | {"in all": time.perf_counter() - start},
        }
        for name, panel in made.items():
            with whole(folder / f"{name}.png") as part:
                part.write_bytes(panel.figure)
        _print(made)
        print(f"\npage: {write_page(made, folder / 'page.html')}")
        return experiment.write(content)


def _timed(name: str, *, device: torch.device, progress: bool | None, size: Size, seed: int) -> dict[str, Any]:
    """One panel as JSON, with the seconds that it took."""
    start = time.perf_counter()
    module = importlib.import_module(f"pyrodrop.analysis.experiments.critiques.{name}")
    return {**module.panel(size, seed).to_json(), "seconds": time.perf_counter() - start}


def _print(panels: dict[str, Panel]) -> None:
    for panel in panels.values():
        print()
        paragraph(f"{panel.title} ({panel.paper.split(',')[0]})")
        facts(panel.facts)
