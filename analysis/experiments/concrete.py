"""Concrete dropout's own synthetic table: how error, uncertainty and learned rates fall with the number of data.

    y = 2 x + 8 + N(0, 1),   x ~ N(0, 1)

For every N: test RMSE, epistemic and aleatoric standard deviation, and the drop rates of the three hidden layers' inputs,
beside the figures of the released notebook of Gal, Hron & Kendall (2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from pyrodrop import arguments, zoo
from pyrodrop.analysis.experiments.parallel import train_each
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.folder import Cells, run_folder
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.data import line
from pyrodrop.devices import resolve
from pyrodrop.files import write_json
from pyrodrop.json_files import Record
from pyrodrop.metrics import rmse

SIZES = (10, 25, 50, 100, 1000, 10_000)
TEST, DRAWS = 2000, 20
LAYERS = [f"layers.{i}.weight" for i in range(3)]
# The notebook's figures: RMSE, epistemic sd, aleatoric sd, rates of the first three layers.
PUBLISHED: Mapping[int, tuple[float, ...]] = {
    10: (1.901, 1.278, 1.257, 0.076, 0.404, 0.403),
    25: (1.349, 1.081, 1.199, 0.080, 0.403, 0.403),
    50: (1.238, 0.904, 1.081, 0.068, 0.325, 0.325),
    100: (1.258, 0.716, 1.317, 0.073, 0.236, 0.236),
    1000: (1.036, 0.644, 1.222, 0.056, 0.232, 0.232),
    10_000: (1.004, 0.531, 1.125, 0.051, 0.157, 0.158),
}
QUANTITIES = ("rmse", "epistemic_sd", "aleatoric_sd", "rate_1", "rate_2", "rate_3")


def run(
    *,
    device: str = "auto",
    seed: int = 0,
    seeds: int = 5,
    jobs: int | None = None,
    out: Path = Path("runs/concrete"),
    quiet: bool = False,
) -> dict[str, Any]:
    """Train concrete dropout at every size, with several seeds, and print the table next to the published one.

    Args:
        device: auto, cpu, cuda, cuda:1 ...
        seed: the first seed.
        seeds: number of seeds.
        jobs: number of processes, one thread each; as many as there are cores if left out.
        out: folder for results.json and what has been trained: a run that was broken off goes on there.
        quiet: show no progress.

    Returns:
        What is written to results.json.
    """
    seeds = arguments.count(seeds, "seeds", "the number of repetitions")
    seed, where = arguments.seed(seed), resolve(device)
    with run_folder(out, "concrete", {"device": where.type, "seed": seed, "seeds": seeds}) as folder:
        names = [f"{n}-{s}" for n in reversed(SIZES) for s in range(seed, seed + seeds)]
        cells = Cells(folder / "cells", {"device": where.type}, _checked)
        measured = train_each(measure, names, quiet, device=where, jobs=jobs, keep=cells)
        table = {n: [measured[f"{n}-{s}"] for s in range(seed, seed + seeds)] for n in SIZES}
        content = {
            "sizes": {str(n): {q: [row[q] for row in rows] for q in QUANTITIES} for n, rows in table.items()},
            "published": {str(n): dict(zip(QUANTITIES, row, strict=True)) for n, row in PUBLISHED.items()},
            "settings": {"seed": seed, "seeds": seeds, "device": where.type, "draws": DRAWS},
            "versions": versions(),
        }
        write_json(folder / "results.json", content)
        _print(table)
        print(f"results: {folder / 'results.json'}")
        return content


def measure(name: str, *, device: torch.device, progress: bool | None) -> dict[str, float]:
    """Train on ``N-seed`` and measure on fresh data."""
    n, seed = map(int, name.split("-"))
    fit = zoo.entry("concrete/synthetic").fit(line(n, seed), seed=seed, device=device, progress=progress)
    test = line(TEST, seed + 10_000)
    prediction = fit.predict(test.x, DRAWS, seed=seed)
    rates = [float(fit.guide.rates()[layer]) for layer in LAYERS]  # type: ignore[attr-defined]
    values = (
        rmse(prediction.mean, test.y),
        float(prediction.spread.square().mean().sqrt()),
        float(
            prediction.distribution.variance.log().mean(0).exp().mean().sqrt()
        ),  # as there: the draws' mean log variance
        *rates,
    )
    return dict(zip(QUANTITIES, values, strict=True))


def _checked(record: Record) -> None:
    """What a kept training must have."""
    for quantity in QUANTITIES:
        record.number(quantity)


def _print(measured: Mapping[int, list[dict[str, float]]]) -> None:
    table = Table(
        title="concrete dropout, y = 2 x + 8 + N(0, 1): mean (least-most of the seeds), published below",
        show_lines=True,
    )
    table.add_column("N", justify="right", no_wrap=True)
    for quantity in QUANTITIES:
        table.add_column(quantity.replace("_", " "), justify="right")
    for n, rows in measured.items():
        cells = []
        for quantity, published in zip(QUANTITIES, PUBLISHED[n], strict=True):
            values = [row[quantity] for row in rows]
            mean = sum(values) / len(values)
            cells.append(f"{mean:.3g} ({min(values):.3g}-{max(values):.3g})\n{published:.3g}")
        table.add_row(str(n), *cells)
    print_table(table)
