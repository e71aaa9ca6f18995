"""Variance of gradient estimators on MNIST (Kingma, Salimans & Welling 2015, table 1).

One network is trained with the local estimator. After 10 and 100 epochs the gradient of the loss on random minibatches of
1000 is drawn many times with each estimator, and its variance is averaged over the weights of the top and the bottom layer.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

from pyrodrop import zoo
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.folder import say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.style import BLUE, GREY, styled
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.analysis.zoo.train import fit_resumed
from pyrodrop.data import Dataset, mnist
from pyrodrop.devices import seeded
from pyrodrop.files import whole
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.reparam import STRATEGIES, PerExampleReparam, reparameterize
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.result import Fit
from pyrodrop.zoo.entries import TABLE_1_BATCH as BATCH

# Top layer after 10 and 100 epochs, bottom layer after 10 and 100.
PUBLISHED: Mapping[str, tuple[float, float, float, float]] = {
    "local": (7.8e3, 1.2e3, 1.9e2, 1.1e2),
    "per_example": (1.4e4, 2.6e3, 4.3e2, 2.5e2),
    "shared": (4.9e4, 4.3e3, 8.5e2, 3.3e2),
    "no noise": (2.8e3, 5.9e1, 1.3e2, 9.0),
}
COLUMNS = ("top, 10 epochs", "top, 100 epochs", "bottom, 10 epochs", "bottom, 100 epochs")
EPOCHS = (10, 100)
CHUNK = 100  # rows at a time under per_example, which samples one weight per row
PRESETS: Mapping[str, tuple[str, int, int, int]] = {
    # zoo entry, training digits, number of gradients, and number of gradients under per_example, which is expensive
    "default": ("kingma/variational-b-small", 30_000, 25, 25),
    "paper": ("kingma/variational-b", 60_000, 50, 8),
}


@with_job_options("device")
def run(
    job: JobOptions,
    *,
    preset: Literal["default", "paper"] = "default",
    out: Path = Path("runs/kingma-table1"),
) -> dict[str, Any]:
    """Train, measure, and print the table next to the published one.

    Args:
        preset: default has hidden layers of 200 units and 30,000 digits, which takes minutes on two cores; paper has 1000
            units and all digits.
        out: folder for results.json and figure.png.

    Returns:
        What is written to results.json.
    """
    with Experiment.begin("kingma-table1", out, job, {"preset": preset}) as experiment:
        name, digits, draws, by_example = PRESETS[preset]
        data = mnist().train.first(digits)
        per_epoch = -(-digits // BATCH)
        measured: dict[str, list[float]] = {row: [0.0] * 4 for row in PUBLISHED}
        seconds: dict[str, float] = {}
        for column, epochs in enumerate(EPOCHS):
            checkpoint = _checkpoint(experiment.folder, column)
            fit = fit_resumed(
                zoo.entry(name), data, Checkpoint(checkpoint, every=5 * per_epoch),
                seed=job.seed, device=job.device, steps=epochs * per_epoch, batch_size=BATCH, progress=job.progress,
            )  # fmt: skip
            for row in tqdm(
                PUBLISHED, desc=f"measuring after {epochs}", leave=False, disable=True if job.quiet else None
            ):
                start = time.perf_counter()
                count = by_example if row == "per_example" else draws
                top, bottom = gradient_variance(fit, data, row, count, job.seed)
                seconds[row] = (time.perf_counter() - start) / count * per_epoch
                measured[row][column], measured[row][2 + column] = top, bottom
        content = {
            "measured": {row: dict(zip(COLUMNS, values, strict=True)) for row, values in measured.items()},
            "published": {row: dict(zip(COLUMNS, values, strict=True)) for row, values in PUBLISHED.items()},
            "seconds_per_epoch": seconds,
        }
        sizes = {"digits": digits, "draws": draws, "draws_per_example": by_example}
        return experiment.write(
            content, table_of(measured, seconds, preset), settings={**sizes, **fit.settings},
            figures={"figure": draw(measured)},
        )  # fmt: skip


def _checkpoint(folder: Path, column: int) -> Path:
    """Path of a training's checkpoint; without one, the longer training starts from a copy of the shorter one's."""
    first, path = (folder / f"training-{epochs}.safetensors" for epochs in (EPOCHS[0], EPOCHS[column]))
    if path.exists():
        say_reused([path.name], folder)
    elif first.exists():
        with whole(path) as file:
            shutil.copyfile(first, file)
    return path


def gradient_variance(fit: Fit, data: Dataset, estimator: str, draws: int, seed: int) -> tuple[float, float]:
    """Variance of the loss gradient over minibatches and noise, averaged over the entries of the last and first weight."""
    model, guide = fit.model, fit.guide
    assert isinstance(model, NetworkModel)
    assert isinstance(guide, Guide)
    trained: Any = averaged(fit).guide if estimator == "no noise" else guide
    locs = [trained.loc[site] for site in (trained.sites[-1], trained.sites[0])]
    strategy = STRATEGIES.get(estimator)
    x, y = data.x.to(fit.device), data.y.to(fit.device)
    moments = [torch.zeros(2, *loc.shape, dtype=torch.float64, device=fit.device) for loc in locs]
    with seeded(seed, fit.device):
        for _ in range(draws):
            rows = torch.randperm(len(x), device=fit.device)[:BATCH]
            gradient = _gradient(model, trained, strategy, locs, x[rows], y[rows], len(x))
            for moment, g in zip(moments, gradient, strict=True):
                moment[0] += g.double()
                moment[1] += g.double() ** 2
    spread = [(m[1] - m[0] ** 2 / draws).mean() / (draws - 1) for m in moments]
    return float(spread[0]), float(spread[1])


def _gradient(
    model: Any, guide: Any, strategy: Any, locs: list[Tensor], x: Tensor, y: Tensor, num_data: int
) -> list[Tensor]:
    """The gradient of the scaled nll; in chunks of rows under `per_example`."""
    pair = (model, guide) if strategy is None else reparameterize(model, guide, strategy)
    chunk = CHUNK if isinstance(strategy, PerExampleReparam) else len(x)
    total = [torch.zeros_like(loc) for loc in locs]
    for rows in torch.arange(len(x), device=x.device).split(chunk):
        loss = _nll(pair[0], pair[1], x[rows], y[rows], num_data) * (len(rows) / len(x))
        for t, g in zip(total, torch.autograd.grad(loss, locs), strict=True):
            t += g
    return total


def _nll(model: Any, guide: Any, x: Tensor, y: Tensor, num_data: int) -> Tensor:
    """The scaled nll without the KL divergence, which from the log-uniform prior does not depend on the means."""
    trace = poutine.trace(guide).get_trace(x, y, num_data=num_data)
    site = poutine.trace(poutine.replay(model, trace=trace)).get_trace(x, y, num_data=num_data).nodes["y"]
    return -scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]).sum()


def table_of(measured: Mapping[str, list[float]], seconds: Mapping[str, float], preset: str) -> Table:
    """Our variances beside the published ones."""
    rows = [["estimator", *COLUMNS, "s / epoch"]]
    for row, values in measured.items():
        cells = [f"{v:.2g} | {p:.2g}" for v, p in zip(values, PUBLISHED[row], strict=True)]
        rows.append([row, *cells, f"{seconds[row]:.2f}"])
    quotients = [[a / b for a, b in zip(t["local"], t["shared"], strict=True)] for t in (measured, PUBLISHED)]
    ratios = [f"{ours:.2f} | {theirs:.2f}" for ours, theirs in zip(*quotients, strict=True)]
    rows.append(["local / shared", *ratios, ""])
    return text_table(f"variance of gradient estimates, preset {preset}: measured | published", rows)


@styled()
def draw(measured: Mapping[str, list[float]]) -> Figure:
    """Bars per estimator, ours next to the published ones, on a log scale."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for axes, (index, column) in zip(figure.subplots(1, 4, sharey=True), enumerate(COLUMNS), strict=True):
        places = range(len(PUBLISHED))
        ours, theirs = [measured[r][index] for r in PUBLISHED], [PUBLISHED[r][index] for r in PUBLISHED]
        axes.bar([p - 0.2 for p in places], ours, 0.4, color=BLUE, label="measured")
        axes.bar([p + 0.2 for p in places], theirs, 0.4, color=GREY, alpha=0.5, label="published")
        axes.set_yscale("log")
        axes.set_xticks(list(places), [r.replace("_", "\n") for r in PUBLISHED])
        axes.set_title(column)
        if index == 0:
            axes.set_ylabel("variance of the gradient")
        if index == len(COLUMNS) - 1:  # the panel with low bars
            axes.legend()
    return figure
