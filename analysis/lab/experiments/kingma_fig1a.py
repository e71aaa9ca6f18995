"""Test error by width for seven dropout methods on MNIST (Kingma, Salimans & Welling 2015, figure 1a).

A cell is a method at a width. Its networks, by default five with different seeds, are one replicated fit. Errors are those
of the averaged weights, as in the paper. Finished cells are stored: repeating the command continues with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from rich.table import Table

from pyrodrop import zoo
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SKY, styled
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.checks import known, some
from pyrodrop.data import mnist
from pyrodrop.devices import seeded
from pyrodrop.files import Record
from pyrodrop.metrics import accuracy
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.zoo.entries import EPOCHS, METHODS, PUBLISHED_WIDTHS, READ_OFF
from pyrodrop.zoo.networks import digits

PRESETS: Mapping[str, tuple[tuple[int, ...], int]] = {"default": ((100, 250), 4), "paper": (PUBLISHED_WIDTHS, EPOCHS)}
COLORS = (BLACK, GREY, RED, ORANGE, BLUE, SKY, GREEN)  # of the methods


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    widths: list[int] | None = None,
    methods: list[str] | None = None,
    preset: Literal["default", "paper"] = "default",
    epochs: int | None = None,
    seeds: int = 5,
    digits: int = 60_000,
    out: Path | None = None,
) -> dict[str, Any]:
    """Train the missing cells of the figure, print the errors next to the published ones and plot them.

    Args:
        widths: widths of the three hidden layers; those of the preset if not given.
        methods: none, binary, gaussian-a, gaussian-b, variational-a, variational-a2, variational-b; all if left out.
        preset: default is for two cores: widths 100 and 250, four epochs, too few for the published errors; paper has six
            widths and 200 epochs, for a GPU.
        epochs: passes over the digits; those of the preset if not given.
        seeds: networks per cell, trained at once.
        digits: number of training digits, the first ones.
        out: folder of the cells, results.json and figure.png; runs/kingma-fig1a-PRESET if left out.

    Returns:
        What is written to results.json.
    """
    usual, long = PRESETS[preset]
    widths, epochs = some(widths, usual, "widths"), long if epochs is None else epochs
    chosen = [known(method, METHODS, "dropout method") for method in some(methods, METHODS, "methods")]
    for name, value in {"seeds": seeds, "epochs": epochs, "widths": min(widths), "digits": digits}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    mnist()  # raises for missing or broken files before training
    settings = {"epochs": epochs, "seeds": seeds, "seed": job.seed, "digits": digits}
    cells = {f"{method}-{width}": (method, width) for width in widths for method in chosen}

    def about(name: str) -> dict[str, Any]:
        method, width = cells[name]
        return {"method": method, "width": width, **settings}

    def check(record: Record) -> None:
        record.numbers("errors", settings["seeds"])
        record.number("seconds")

    with Experiment.begin("kingma-fig1a", out or Path("runs") / f"kingma-fig1a-{preset}", job, settings) as experiment:
        # On a CPU the longest trainings begin first, so that none runs alone at the end.
        by_cell = experiment.measure(
            _measure, sorted(cells, key=lambda name: -cells[name][1] if job.device.type == "cpu" else cells[name][1]),
            experiment.cells(check, about, where=""), cells=cells, settings=settings,
        )  # fmt: skip
        errors = {name: _row(by_cell[name]) for name in cells}
        return experiment.write(
            {"errors": errors},
            table_of(errors, settings),
            settings={"preset": preset},
            figures={"figure": draw(errors)},
        )


def _measure(
    name: str,
    *,
    cells: Mapping[str, tuple[str, int]],
    settings: Mapping[str, Any],
    device: torch.device,
    progress: bool | None,
) -> dict[str, Any]:
    """The result of one cell."""
    (method, width), split = cells[name], mnist()
    data = split.train.first(settings["digits"])
    models, posteriors = [], []
    for number in range(settings["seeds"]):
        with seeded(settings["seed"] + number, torch.device("cpu")):
            models.append(digits(data, width=width, prior=METHODS[method].prior))
            posteriors.append(METHODS[method].guide(models[-1]))
    many = fit_replicates(
        models, posteriors, data, count=settings["seeds"], seed=settings["seed"], device=device, progress=progress,
        **zoo.entry(f"kingma-fig1a/{method}").settings(data, epochs=settings["epochs"]),
    )  # fmt: skip
    if many.failed:
        raise FloatingPointError(f"the loss of {name} stopped being finite in replicates {sorted(many.failed)}")
    errors = [100 * (1 - accuracy(averaged(each).predict(split.test.x, 1), split.test.y)) for each in many]
    return {
        "errors": errors,
        # alpha of every layer, or the drop rate of binary dropout; empty without dropout
        "alphas": {layer: float(rate) for layer, rate in many[0].guide.rates().items()},  # type: ignore[attr-defined]
        "seconds": many[0].settings["seconds"],
        "versions": versions(),
        "machine": machine(device),
    }


def _row(content: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a cell as a table row."""
    cell, errors = content["cell"], torch.tensor(content["errors"], dtype=torch.float64)
    width, published = cell["width"], METHODS[cell["method"]].published
    return {
        "method": cell["method"],
        "width": width,
        "error_percent": float(errors.mean()),
        "se": float(errors.std() / len(errors) ** 0.5) if len(errors) > 1 else None,
        "published": published[PUBLISHED_WIDTHS.index(width)] if width in PUBLISHED_WIDTHS else None,
        "seconds": content["seconds"],
    }


def table_of(rows: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> Table:
    """The errors, one row per method and one column per width."""
    widths = sorted({row["width"] for row in rows.values()})
    texts = {(row["method"], row["width"]): _cell(row) for row in rows.values()}
    names = [method for method in METHODS if any(method == other for other, _ in texts)]
    epochs, digits, seeds = settings["epochs"], settings["digits"], settings["seeds"]
    title = f"test error %, {epochs} epochs of {digits:,} digits, mean ± s.e. of {seeds} seeds | {READ_OFF}"
    header = ["method", *(f"3 x {width}" for width in widths)]
    return text_table(
        title, [header, *([name, *(texts.get((name, width), "-") for width in widths)] for name in names)]
    )


def _cell(row: Mapping[str, Any]) -> str:
    error = f"{row['error_percent']:.2f}" + ("" if row["se"] is None else f" ± {row['se']:.2f}")
    return f"{error} | {'-' if row['published'] is None else format(row['published'], '.2f')}"


@styled()
def draw(rows: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot our errors over the published curves."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, ((method, about), color) in enumerate(zip(METHODS.items(), COLORS, strict=True)):
        of_method = sorted((row for row in rows.values() if row["method"] == method), key=lambda row: row["width"])
        if not of_method:
            continue
        axes.plot(PUBLISHED_WIDTHS, about.published, "--", color=color, linewidth=1, alpha=0.6)
        axes.errorbar(
            [row["width"] * 1.015 ** (number - 3) for row in of_method],  # side by side
            [row["error_percent"] for row in of_method], [row["se"] or 0 for row in of_method],
            fmt="o-", color=color, markersize=4, capsize=2, label=about.summary,
        )  # fmt: skip
    axes.plot([], [], "--", color=GREY, linewidth=1, label=READ_OFF)
    axes.set_xscale("log")
    widths = sorted({*PUBLISHED_WIDTHS, *(row["width"] for row in rows.values())})
    axes.set_xticks(widths, [f"{width:g}" for width in widths])
    axes.minorticks_off()
    axes.set_xlabel("units of each of three hidden layers")
    axes.set_ylabel("test error, %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
