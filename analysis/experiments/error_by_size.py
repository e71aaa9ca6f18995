"""Test error by size of the network for several dropout methods, as in figure 1 of Kingma, Salimans & Welling (2015).

A cell is a method at a size. Its networks, which differ in their seeds, are one replicated fit. Errors are those of the
averaged weights, as in the paper. Finished cells are stored: repeating the command continues with the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table

from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.job_options import JobOptions
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SKY, styled
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.data import Dataset, Split
from pyrodrop.devices import seeded
from pyrodrop.json_files import Record
from pyrodrop.metrics import accuracy
from pyrodrop.models import NetworkModel
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.result import Fit
from pyrodrop.zoo.kingma import Method

COLORS = (BLACK, GREY, RED, ORANGE, BLUE, SKY, GREEN)  # of the methods


@dataclass(frozen=True)
class Study:
    """The differences between the two figures.

    Attributes:
        job: name of the job.
        size: name of the size in files, settings and arguments.
        rows: name of the number of training rows in the settings.
        methods: the methods.
        sizes: the sizes with published errors.
        load: loads the data, given ``progress``.
        network: makes a network from the training data, given ``method`` and the size by its name.
        training: makes the arguments of a fit from the training data, given ``epochs``.
        header: format of the header of a size in the table.
        title: title of the table, a format string of the settings.
        axis: label of the sizes in the figure.
        caption: title of the figure; may be empty.
        published_as: name of the published errors.
    """

    job: str
    size: str
    rows: str
    methods: Mapping[str, Method]
    sizes: tuple[float, ...]
    load: Callable[..., Split]
    network: Callable[..., NetworkModel]
    training: Callable[..., dict[str, Any]]
    header: str
    title: str
    axis: str
    caption: str = ""
    published_as: str = "published"


def run_study(
    study: Study,
    methods: Sequence[str],
    sizes: Sequence[float],
    settings: Mapping[str, Any],
    job: JobOptions,
    *,
    preset: str,
    out: Path,
) -> dict[str, Any]:
    """Train the missing cells, print their errors, next to published ones if there are any, and plot them.

    Args:
        study: the figure.
        methods, sizes: methods and sizes of the cells.
        settings: common settings of all cells: ``epochs``, ``seeds``, ``seed``, the number of training rows under the
            name `Study.rows` (None for all), and further settings of the study.
        job: options of the run.
        preset: name of the preset, which is stored.
        out: folder of the run.

    Returns:
        What is written to results.json.
    """
    cells = {f"{method}-{size:g}": (method, size) for size in sizes for method in methods}

    def about(name: str) -> dict[str, Any]:
        method, size = cells[name]
        return {"method": method, study.size: size, **settings}

    def check(record: Record) -> None:
        record.numbers("errors", settings["seeds"])
        record.number("seconds")

    with Experiment.begin(study.job, out, job, settings) as experiment:
        folder = experiment.folder
        cells = {**cells, **_earlier(study, folder), **cells}
        # On a CPU the longest trainings begin first, so that none runs alone at the end.
        on_cpu = job.device.type == "cpu"
        by_cell = experiment.measure(
            _measure, sorted(cells, key=lambda name: -cells[name][1] if on_cpu else cells[name][1]),
            experiment.cells(check, about, where=""),
            study=study, cells=cells, settings=settings,
        )  # fmt: skip
        errors = {name: _row(study, by_cell[name]) for name in cells}
        return experiment.write(
            {"errors": errors}, table_of(study, errors, settings), settings={"preset": preset},
            figures={"figure": draw(study, errors)},
        )  # fmt: skip


def _earlier(study: Study, folder: Path) -> dict[str, tuple[str, float]]:
    """Method and size of the cells in the folder, by name."""
    parts = {path.stem: path.stem.rpartition("-") for path in sorted(folder.glob("*-*.json"))}
    cells = {name: (method, _number(size)) for name, (method, _, size) in parts.items() if method in study.methods}
    return {name: (method, size) for name, (method, size) in cells.items() if not math.isnan(size)}


def _number(text: str) -> float:
    """The size in the name of a file, an int if it is written as one; NaN if it is no number."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return math.nan


def _measure(
    name: str,
    *,
    study: Study,
    cells: Mapping[str, tuple[str, float]],
    settings: Mapping[str, Any],
    device: torch.device,
    progress: bool | None,
) -> dict[str, Any]:
    """The result of one cell."""
    (method, size), split, rows = cells[name], study.load(progress=False), settings[study.rows]
    data: Dataset = split.train if rows is None else split.train.first(rows)
    models, posteriors = [], []
    for number in range(settings["seeds"]):
        with seeded(settings["seed"] + number, torch.device("cpu")):
            models.append(study.network(data, method=method, **{study.size: size}))
            posteriors.append(study.methods[method].guide(models[-1]))
    many = fit_replicates(
        models, posteriors, data,
        count=settings["seeds"], seed=settings["seed"], device=device, progress=progress,
        **study.training(data, epochs=settings["epochs"]),
    )  # fmt: skip
    if many.failed:
        raise FloatingPointError(f"the loss of {name} stopped being finite in replicates {sorted(many.failed)}")
    errors = [100 * (1 - accuracy(averaged(each).predict(split.test.x, 1), split.test.y)) for each in many]
    return {
        "errors": errors,
        "alphas": _alphas(many[0]),
        "seconds": many[0].settings["seconds"],
        "versions": versions(),
        "machine": machine(device),
    }


def _alphas(trained: Fit) -> dict[str, float]:
    """Noise of every layer after training: alpha, or the drop rate of binary dropout; empty without dropout."""
    return {name: float(value) for name, value in trained.guide.rates().items()}  # type: ignore[attr-defined]


def _row(study: Study, content: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a cell as a table row."""
    cell, errors = content["cell"], torch.tensor(content["errors"], dtype=torch.float64)
    size, published = cell[study.size], study.methods[cell["method"]].published
    return {
        "method": cell["method"],
        study.size: size,
        "error_percent": float(errors.mean()),
        "se": float(errors.std() / len(errors) ** 0.5) if len(errors) > 1 else None,
        "published": published[study.sizes.index(size)] if published and size in study.sizes else None,
        "seconds": content["seconds"],
    }


def table_of(study: Study, rows: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> Table:
    """The errors, one row per method and one column per size."""
    sizes = sorted({row[study.size] for row in rows.values()})
    with_published = any(method.published for method in study.methods.values())
    texts = {(row["method"], row[study.size]): _cell(row, with_published) for row in rows.values()}
    names = [method for method in study.methods if any(method == other for other, _ in texts)]
    title = study.title.format(**settings) + (f" | {study.published_as}" if with_published else "")
    header = ["method", *(study.header.format(size) for size in sizes)]
    return text_table(title, [header, *([name, *(texts.get((name, size), "-") for size in sizes)] for name in names)])


def _cell(row: Mapping[str, Any], with_published: bool) -> str:
    error = f"{row['error_percent']:.2f}" + ("" if row["se"] is None else f" ± {row['se']:.2f}")
    if not with_published:
        return error
    return f"{error} | {'-' if row['published'] is None else format(row['published'], '.2f')}"


@styled()
def draw(study: Study, rows: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot our errors, over the published curves if there are any."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, ((method, about), color) in enumerate(zip(study.methods.items(), COLORS, strict=True)):
        of_method = sorted((row for row in rows.values() if row["method"] == method), key=lambda row: row[study.size])
        if not of_method:
            continue
        if about.published:
            axes.plot(study.sizes, about.published, "--", color=color, linewidth=1, alpha=0.6)
        axes.errorbar(
            [row[study.size] * 1.015 ** (number - 3) for row in of_method],  # side by side
            [row["error_percent"] for row in of_method], [row["se"] or 0 for row in of_method],
            fmt="o-", color=color, markersize=4, capsize=2, label=about.summary,
        )  # fmt: skip
    published = study.sizes if any(about.published for about in study.methods.values()) else ()
    if published:
        axes.plot([], [], "--", color=GREY, linewidth=1, label=study.published_as)
    axes.set_xscale("log")
    sizes = sorted({*published, *(row[study.size] for row in rows.values())})
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(study.axis)
    axes.set_ylabel("test error, %")
    axes.set_title(study.caption)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
