"""The ELBO of one model on MNIST that each of the four estimators reaches in equal wall time.

Three hidden ReLU layers of 200, type B variational dropout, minibatches of 200: a small version of section 5.1 of Kingma,
Salimans & Welling (2015). Training continues from its checkpoint in rounds of steps; only the time of training counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from pyrodrop import arguments, zoo
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.style import BLUE, GREEN, GREY, RED, styled
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.data import Dataset, mnist
from pyrodrop.json_files import Record
from pyrodrop.reparam import STRATEGIES
from pyrodrop.training.checkpoint import Checkpoint

ENTRY, DIGITS, BATCH, ROUNDS = "kingma/variational-b-small", 10_000, 200, 8
COLORS = {"shared": RED, "per_example": GREY, "local": BLUE, "flipout": GREEN}


@with_job_options("device")
def run(
    job: JobOptions,
    *,
    seconds: float = 30.0,
    out: Path = Path("runs/estimators"),
) -> dict[str, Any]:
    """Train with each estimator for equal time, print the ELBOs and plot them over time.

    Args:
        seconds: training time per estimator.
        out: folder for results.json, figure.png and the finished curves: an interrupted run continues there.

    Returns:
        What is written to results.json.
    """
    seconds = arguments.positive(seconds, "seconds", "the training time per estimator")
    data = mnist(progress=not job.quiet).train.first(DIGITS)
    with Experiment.begin("estimators", out, job, {"seconds": seconds}) as experiment:
        cells = experiment.measure_in_turn(
            lambda name: {"points": _curve(data, name, seconds, job.device, job.seed)}, tuple(STRATEGIES),
            experiment.cells(_checked),
        )  # fmt: skip
        curves = {name: cell["points"] for name, cell in cells.items()}
        return experiment.write(
            {"curves": curves}, table_of(curves), settings={"digits": DIGITS, "batch_size": BATCH},
            figures={"figure": _figure(curves)},
        )  # fmt: skip


def _checked(record: Record) -> None:
    """Check that a stored curve has points of four numbers."""
    for point in record.records("points"):
        for key in ("seconds", "steps", "elbo", "se"):
            point.number(key)


def _curve(data: Dataset, estimator: str, seconds: float, device: Any, seed: int) -> list[dict[str, float]]:
    """ELBO after each of several rounds of training, until `seconds` of training have passed."""
    points: list[dict[str, float]] = []
    spent, done, size = 0.0, 0, 5
    with tempfile.TemporaryDirectory() as scratch:
        while spent < seconds:
            done += size
            fit = zoo.entry(ENTRY).fit(
                data,
                seed=seed,
                device=device,
                estimator=estimator,
                batch_size=BATCH,
                steps=done,
                progress=False,
                checkpoint=Checkpoint(Path(scratch) / "state.safetensors", every=done),
            )
            spent += fit.settings["seconds"]
            elbo = fit.elbo(10)
            points.append({"seconds": spent, "steps": done, "elbo": elbo.value, "se": elbo.se})
            size = max(5, int(seconds / ROUNDS / (spent / done)))
    return points


def table_of(curves: Mapping[str, list[dict[str, float]]]) -> Table:
    """The last point of every curve."""
    rows = [["estimator", "seconds", "steps", "ELBO (nats per digit)", "s.e."]]
    for estimator, points in curves.items():
        end = points[-1]
        numbers = (f"{end['seconds']:.0f}", f"{end['steps']:.0f}")
        rows.append([estimator, *numbers, f"{end['elbo'] / DIGITS:.4f}", f"{end['se'] / DIGITS:.4f}"])
    return text_table(f"ELBO after equal time, {DIGITS:,} digits, minibatch {BATCH}", rows)


@styled()
def _figure(curves: Mapping[str, list[dict[str, float]]]) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for estimator, points in curves.items():
        values = [p["elbo"] / DIGITS for p in points]
        axes.plot(
            [p["seconds"] for p in points],
            values,
            marker="o",
            markersize=3,
            color=COLORS[estimator],
            label=estimator,
        )
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("ELBO, nats per digit")
    axes.legend()
    return figure
