"""Test error by width for seven dropout methods on MNIST (Kingma, Salimans & Welling 2015, figure 1a).

A cell is a method at a width; its networks, five with seeds of their own, are one replicated fit. Errors are those of the
averaged weights, as in the paper. Cells are kept as they are done: run the same command again to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from rich.table import Table

from pyrodrop import arguments
from pyrodrop.analysis.experiments.averaged import averaged
from pyrodrop.analysis.experiments.parallel import train_each
from pyrodrop.analysis.reports.console import processor, versions
from pyrodrop.analysis.reports.folder import differences, run_folder, say_reused
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SKY, styled, write_figure
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.data import mnist
from pyrodrop.devices import resolve, seeded
from pyrodrop.files import write_json
from pyrodrop.json_files import Failed, read_record
from pyrodrop.metrics import accuracy
from pyrodrop.names import known, some
from pyrodrop.training.fitted import Fit
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.zoo.kingma_fig1a import EPOCHS, METHODS, PUBLISHED_WIDTHS, network, training

PRESETS: Mapping[str, tuple[tuple[int, ...], int]] = {"default": ((100, 250), 4), "paper": (PUBLISHED_WIDTHS, EPOCHS)}
COLORS = (BLACK, GREY, RED, ORANGE, BLUE, SKY, GREEN)  # of METHODS


@dataclass(frozen=True)
class Cell:
    """Settings that determine the results of one cell."""

    method: str
    width: int
    epochs: int
    seeds: int
    seed: int
    digits: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.width}"


def run(
    *,
    widths: list[int] | None = None,
    methods: list[str] | None = None,
    preset: Literal["default", "paper"] = "default",
    epochs: int | None = None,
    seeds: int = 5,
    digits: int = 60_000,
    jobs: int | None = None,
    device: str = "auto",
    seed: int = 0,
    out: Path | None = None,
    quiet: bool = False,
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
        jobs: number of processes, one thread each; as many as there are cores if left out.
        device: auto, cpu, cuda, cuda:1 ...
        seed: first seed of initial weights, minibatches and noise.
        out: folder of the cells, results.json and figure.png; runs/kingma-fig1a-PRESET if left out.
        quiet: show no progress.

    Returns:
        What is written to results.json.
    """
    usual, long = PRESETS[preset]
    widths, epochs = some(widths, usual, "widths"), long if epochs is None else epochs
    chosen = [known(method, METHODS, "dropout method") for method in some(methods, METHODS, "methods")]
    for name, value in {"seeds": seeds, "epochs": epochs, "widths": min(widths), "digits": digits}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    seed, where = arguments.seed(seed), resolve(device)
    cells = [Cell(m, w, epochs, seeds, seed, digits) for w in widths for m in chosen]
    mnist(progress=not quiet)  # raises for missing or broken files before training
    about = {"epochs": epochs, "seeds": seeds, "seed": seed, "digits": digits, "device": where.type}
    with run_folder(out or Path("runs") / f"kingma-fig1a-{preset}", "kingma-fig1a", about) as folder:
        missing = {cell.name: cell for cell in cells if _load(folder, cell) is None}
        say_reused([cell.name for cell in cells if cell.name not in missing], folder)
        if missing:
            order = sorted(missing, key=lambda name: -missing[name].width)
            train_each(
                _measure, order, quiet, device=where, jobs=jobs, cells=missing,
                folder=None if where.type == "cpu" else folder,
                done=lambda name, content: write_json(folder / f"{name}.json", content),
            )  # fmt: skip
        found = {cell.name: _load(folder, cell) for cell in cells}
        content = {
            "errors": {name: _row(cell) for name, cell in found.items() if cell},
            "settings": {
                "preset": preset,
                **{k: v for k, v in asdict(cells[0]).items() if k not in ("method", "width")},
            },
            "versions": versions(),
            "machine": {"processor": processor(), "device": where.type},
        }
        write_json(folder / "results.json", content)
        write_figure(folder / "figure.png", _figure(content["errors"]))
        _print(content["errors"], content["settings"])
        print(f"figure: {folder / 'figure.png'}\nresults: {folder / 'results.json'}")
        return content


def _measure(
    name: str, *, cells: Mapping[str, Cell], device: torch.device, progress: bool | None, folder: Path | None = None
) -> dict[str, Any]:
    """The result of one cell; a training that was broken off goes on from its checkpoint in the folder, if there is one."""
    cell, split = cells[name], mnist(progress=False)
    data = split.train.first(cell.digits)
    models, posteriors = [], []
    for number in range(cell.seeds):
        with seeded(cell.seed + number, torch.device("cpu")):
            models.append(network(data, method=cell.method, width=cell.width))
            posteriors.append(METHODS[cell.method].guide(models[-1]))
    checkpoint = None if folder is None else folder / f"{name}.safetensors"
    many = fit_replicates(
        models, posteriors, data, checkpoint=checkpoint,
        count=cell.seeds, seed=cell.seed, device=device, progress=progress, **training(data, epochs=cell.epochs),
    )  # fmt: skip
    if many.failed:
        raise FloatingPointError(f"the loss of {name} stopped being finite in replicates {sorted(many.failed)}")
    if checkpoint is not None:
        checkpoint.unlink()
    errors = [100 * (1 - accuracy(averaged(each).predict(split.test.x, 1), split.test.y)) for each in many]
    return {
        "cell": asdict(cell),
        "errors": errors,
        "alphas": _alphas(many[0]),
        "seconds": many[0].settings["seconds"],
        "versions": versions(),
        "machine": {"processor": processor(), "device": device.type},
    }


def _alphas(trained: Fit) -> dict[str, float]:
    """Noise of every layer after training: alpha, or the drop rate of binary dropout; empty without dropout."""
    return {name: float(value) for name, value in trained.guide.rates().items()}  # type: ignore[attr-defined]


def _load(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The result of a cell, or None if there is none.

    Raises:
        ValueError: the file has a result of other settings, or is broken.
    """
    path = folder / f"{cell.name}.json"
    if not path.exists():
        return None
    record = read_record(path, "remove this file and run the same command again")
    differ = differences(record.record("cell").content, asdict(cell))
    if differ:
        raise Failed(f"{path} has a result of other settings ({', '.join(differ)}); choose another folder with --out")
    record.numbers("errors", cell.seeds)
    record.number("seconds")
    return dict(record.content)


def _row(content: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a cell as a table row."""
    cell, errors = content["cell"], torch.tensor(content["errors"], dtype=torch.float64)
    at = PUBLISHED_WIDTHS.index(cell["width"]) if cell["width"] in PUBLISHED_WIDTHS else None
    return {
        "method": cell["method"],
        "width": cell["width"],
        "error_percent": float(errors.mean()),
        "se": float(errors.std() / len(errors) ** 0.5) if len(errors) > 1 else None,
        "published": None if at is None else METHODS[cell["method"]].published[at],
        "seconds": content["seconds"],
    }


def _print(rows: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    widths = sorted({row["width"] for row in rows.values()})
    table = Table(
        title=f"test error %, {settings['epochs']} epochs of {settings['digits']:,} digits, mean ± s.e. of "
        f"{settings['seeds']} seeds | published"
    )
    table.add_column("method")
    for width in widths:
        table.add_column(f"3 x {width}", justify="right")
    for method in METHODS:
        own = {row["width"]: row for row in rows.values() if row["method"] == method}
        if own:
            table.add_row(method, *(_cell(own.get(width)) for width in widths))
    print_table(table)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    error = "" if row["se"] is None else f" ± {row['se']:.2f}"
    return f"{row['error_percent']:.2f}{error} | {'-' if row['published'] is None else format(row['published'], '.2f')}"


@styled()
def _figure(rows: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot our errors over the published curves."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, ((method, about), color) in enumerate(zip(METHODS.items(), COLORS, strict=True)):
        own = sorted((row for row in rows.values() if row["method"] == method), key=lambda row: row["width"])
        if not own:
            continue
        axes.plot(PUBLISHED_WIDTHS, about.published, "--", color=color, linewidth=1, alpha=0.6)
        axes.errorbar(
            [row["width"] * 1.015 ** (number - 3) for row in own],  # side by side
            [row["error_percent"] for row in own], [row["se"] or 0 for row in own],
            fmt="o-", color=color, markersize=4, capsize=2, label=about.summary,
        )  # fmt: skip
    axes.plot([], [], "--", color=GREY, linewidth=1, label="published")
    axes.set_xscale("log")
    widths = sorted({*PUBLISHED_WIDTHS, *(row["width"] for row in rows.values())})
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
    axes.set_xlabel("units of each of three hidden layers")
    axes.set_ylabel("test error, %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
