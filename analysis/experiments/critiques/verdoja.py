"""Verdoja & Kyrki (2020): the spread of MC dropout depends on rate, width and depth as much as on the data.

One grid of networks on one data set with a gap. All rates, kinds of dropout and seeds of one architecture are replicates of
one training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.analysis.reports.style import BLACK, SERIES, png, styled
from pyrodrop.data import Dataset

NOISE, ROWS, DRAWS = 0.1, 80, 300
RATES = (0.05, 0.1, 0.2, 0.35, 0.5)
PLACES: Mapping[str, tuple[float, float]] = {"at the data": (-0.9, -0.4), "between": (-0.1, 0.1), "outside": (1.4, 1.6)}
SIZES: dict[Size, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {  # widths, depths, steps, seeds
    "default": ((20, 100), (1, 2, 3), 2500, 2),
    "quick": ((10,), (1,), 40, 2),
}
Row = dict[str, float]


def panel(size: Size, seed: int) -> Panel:
    """The grid of fixed rates, learned rates from the same starts, and Gaussian processes of the same priors."""
    widths, depths, steps, seeds = SIZES[size]
    cells = [(width, depth) for depth in depths for width in widths]
    fixed = {cell: trained(*cell, "fixed", RATES, steps, seeds, seed) for cell in cells}
    starts = (RATES[0], RATES[-1])
    learned = {cell: trained(*cell, "learned", starts, steps, seeds, seed) for cell in cells}
    processes = {depth: process(depth) for depth in depths}
    table = {
        f"{depth} x {width}": {f"rate {rate:g}": row["at the data"] for rate, row in zip(RATES, rows, strict=True)}
        | {
            f"learned from {rate:g}": row["at the data"]
            for rate, row in zip(starts, learned[width, depth], strict=True)
        }
        for (width, depth), rows in fixed.items()
    }
    places = {
        f"{depth} x {width}": {f"{place}, rate .1": rows[1][place] for place in PLACES}
        | {f"{place}, learned": learned[width, depth][0][place] for place in PLACES}
        for (width, depth), rows in fixed.items()
    } | {
        f"{depth} hidden, Gaussian process": {f"{place}, exact": processes[depth][place] for place in PLACES}
        for depth in depths
    }
    by_rate = [row[-1]["at the data"] / row[0]["at the data"] for row in fixed.values()]
    by_start = [row[-1]["at the data"] / row[0]["at the data"] for row in learned.values()]
    narrow, wide = min(widths), max(widths)
    by_width = [fixed[narrow, depth][1]["at the data"] / fixed[wide, depth][1]["at the data"] for depth in depths]
    every = [row["at the data"] for rows in fixed.values() for row in rows]
    errors = {"fixed": _errors(fixed), "learned": _errors(learned)}
    return Panel(
        title="The spread depends on rate, width and depth",
        paper="Verdoja & Kyrki (2020), Notes on the Behavior of MC Dropout",
        link="https://arxiv.org/abs/2008.02627",
        shown=(
            f"The same {ROWS} observations of one function, in two clusters, and networks that differ in rate, width and "
            f"depth. Within the data, where the posterior is tight, the spread of MC dropout ranges from {min(every):.3f} to "
            f"{max(every):.3f} over the grid. It is set by the rate and the architecture; the observations are the same. "
            "Networks of one architecture are trained together as replicates."
        ),
        tables={
            f"spread of f at the data, depth x width, mean of {seeds} seeds": table,
            "spread of f by place": places,
        },
        facts={
            "in every architecture the spread at the data grows with the rate, from .05 to .5": all(
                r > 1 for r in by_rate
            ),
            "learned rates depend less on their start than the spread on a fixed rate, in every architecture": all(
                abs(math.log(a)) < abs(math.log(b)) for a, b in zip(by_start, by_rate, strict=True)
            ),
            f"at rate .1 the spread of width {narrow} is above that of width {wide} at every depth": (
                len(widths) == 1 or all(r > 1 for r in by_width)
            ),
        },
        helps=(
            f"Learned rates (concrete dropout, one per unit): starts of {starts[0]:g} and {starts[1]:g} end at spreads that "
            f"differ by a factor of {_typical(by_start):.2f} (geometric mean over architectures), where fixed rates differ "
            f"by {_typical(by_rate):.2f}. The RMSE on the function is {errors['learned']:.3f} against {errors['fixed']:.3f}.",
            f"Width: from {narrow} to {wide} units the spread at rate .1 changes by a factor of {1 / _typical(by_width):.2f}.",
            *(
                f"Depth {depth}: between the clusters the spread at rate .1 and width {wide} is "
                f"{fixed[wide, depth][1]['between'] / fixed[wide, depth][1]['at the data']:.1f} times that at the data; "
                f"exact inference for the wide network gives "
                f"{processes[depth]['between'] / processes[depth]['at the data']:.0f} times."
                for depth in depths
            ),
        ),
        figure=png(_figure(fixed, learned, processes, widths, depths)),
    )


def sample() -> Dataset:
    """Two clusters of observations of sin(4 x), with a gap around 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-1, -0.3, ROWS // 2), torch.linspace(0.3, 1, ROWS // 2)])[:, None]
    return Dataset(x, torch.sin(4 * x) + NOISE * torch.randn(x.shape, generator=generator))


def network(width: int, depth: int) -> models.MLP:
    """ReLU layers of equal width; prior variances are 4 over the fan-in, as in the wide limit."""
    scales = {f"layers.{i}.*": priors.Gaussian(2 / math.sqrt(1 if i == 0 else width)) for i in range(depth + 1)}
    return models.MLP(
        [1, *[width] * depth, 1],
        prior=scales,
        likelihood=likelihoods.Gaussian(NOISE**-2),
        bias_prior=priors.Gaussian(1.0),
    )


def trained(
    width: int, depth: int, kind: str, rates: tuple[float, ...], steps: int, seeds: int, seed: int
) -> list[Row]:
    """Spreads by place and the RMSE, a row per rate, of all rates and seeds trained together."""
    torch.manual_seed(seed)
    several = [network(width, depth) for _ in range(len(rates) * seeds)]
    own = [rate for rate in rates for _ in range(seeds)]
    fits = pyrodrop.fit_replicates(
        several,
        [_guide(model, kind, rate) for model, rate in zip(several, own, strict=True)],
        sample(),
        count=len(several),
        steps=steps,
        lr=1e-2,
        lr_schedule=schedules.cosine(steps),
        estimator="local",
        starts="new",
        seed=seed,
        device="cpu",
        progress=False,
    )
    rows = [measured(fit.predict(_points(), DRAWS, seed=seed)) for fit in fits]
    return [
        {key: float(np.mean([row[key] for row in rows[i * seeds : (i + 1) * seeds]])) for key in rows[0]}
        for i in range(len(rates))
    ]


def process(depth: int) -> Row:
    """Exact inference under the prior of the infinitely wide network of this depth."""
    gp = GaussianProcess(sample(), from_model(network(50, depth)), learn=False, progress=False)
    return measured(gp.predict(_points(), 2))


def measured(prediction: Any) -> Row:
    """Mean spread by place, and the RMSE of the mean from the function at the data."""
    x, spread = _points()[:, 0], prediction.spread[:, 0]
    row = {name: float(spread[_inside(x, ends)].mean()) for name, ends in PLACES.items()}
    near = _inside(x, PLACES["at the data"])
    return row | {"rmse": float((prediction.mean[near, 0] - torch.sin(4 * x[near])).square().mean().sqrt())}


def _guide(model: models.MLP, kind: str, rate: float) -> guides.Guide:
    if kind == "fixed":
        return guides.BernoulliDropout(model, rate, mask_input=False)
    return guides.ConcreteDropout(model, "input", drop_rate=rate, mask_input=False)


def _points() -> Tensor:
    return torch.cat([torch.linspace(low, high, 10) for low, high in PLACES.values()])[:, None]


def _inside(x: Tensor, ends: tuple[float, float]) -> Tensor:
    return (x >= ends[0] - 1e-6) & (x <= ends[1] + 1e-6)


def _typical(ratios: list[float]) -> float:
    return math.exp(sum(abs(math.log(ratio)) for ratio in ratios) / len(ratios))


def _errors(grid: Mapping[Any, list[Row]]) -> float:
    return float(np.mean([row["rmse"] for rows in grid.values() for row in rows]))


@styled()
def _figure(
    fixed: Mapping[tuple[int, int], list[Row]],
    learned: Mapping[tuple[int, int], list[Row]],
    processes: Mapping[int, Row],
    widths: tuple[int, ...],
    depths: tuple[int, ...],
) -> Figure:
    figure = Figure(figsize=(3.2 * len(depths), 3.2), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for axes, depth in zip(panels, depths, strict=True):
        for width, colour in zip(widths, SERIES, strict=False):
            spreads = [row["at the data"] for row in fixed[width, depth]]
            axes.loglog(RATES, spreads, "o-", color=colour, markersize=3, linewidth=1, label=f"width {width}")
            ends = [row["at the data"] for row in learned[width, depth]]
            axes.loglog((RATES[0], RATES[-1]), ends, "s:", color=colour, markersize=4, linewidth=1)
        axes.axhline(
            processes[depth]["at the data"], color=BLACK, linestyle="--", linewidth=0.8, label="GP, wide limit"
        )
        axes.plot([], [], "s:", color=BLACK, markersize=4, linewidth=1, label="learned rates, by start")
        axes.set(title=f"{depth} hidden layer{'s' if depth > 1 else ''}", xlabel="drop rate")
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        axes.minorticks_off()
    panels[0].set_ylabel("spread of f at the data")
    panels[0].legend(fontsize=7)
    return figure
