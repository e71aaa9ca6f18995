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
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.analysis.lab.experiments.critiques.panel import Panel, Size, fitted, learning_rate, sized
from pyrodrop.data import Dataset

NOISE, ROWS, DRAWS = 0.1, 80, 300
RATES = (0.05, 0.1, 0.2, 0.35, 0.5)
PLACES: Mapping[str, tuple[float, float]] = {"at the data": (-0.9, -0.4), "between": (-0.1, 0.1), "outside": (1.4, 1.6)}
SIZES: dict[Size, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {  # widths, depths, steps, seeds
    "default": ((20, 100), (1, 2, 3), 1500, 2),
    "quick": ((10,), (1,), 40, 2),
}
FIXED, BERNOULLI, GAUSSIAN = "fixed rate", "learned Bernoulli rates", "learned Gaussian noise"
STARTS = (RATES[0], RATES[-1])
Row = dict[str, float]
Grid = dict[tuple[int, int], list[Row]]  # by width and depth, a row per rate


def panel(size: Size, seed: int) -> Panel:
    """Spreads of f of fixed rates, learned noise from two starts, and Gaussian processes of the same priors."""
    widths, depths, steps, seeds = sized(SIZES, size)
    cells = [(width, depth) for depth in depths for width in widths]
    grids = {
        kind: {cell: trained(*cell, kind, rates, steps, seeds, seed) for cell in cells}
        for kind, rates in {FIXED: RATES, BERNOULLI: STARTS, GAUSSIAN: STARTS}.items()
    }
    processes = {depth: process(depth) for depth in depths}
    table = {f"{depth} x {width}": _spreads(grids, (width, depth)) for width, depth in cells}
    for depth, row in processes.items():
        table[f"{depth} hidden, Gaussian process"] = {"exact": row["at the data"]}
    return {"spread at the data": table, "spread by place": _by_place(grids, processes, cells)}


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
    rates_of_models = [rate for rate in rates for _ in range(seeds)]
    fits = fitted(
        several,
        [_guide(model, kind, rate) for model, rate in zip(several, rates_of_models, strict=True)],
        sample(),
        count=len(several),
        steps=steps,
        lr=learning_rate,
        seed=seed,
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
    if kind == FIXED:
        return guides.BernoulliDropout(model, rate, mask_input=False)
    if kind == BERNOULLI:
        return guides.ConcreteDropout(model, "input", drop_rate=rate, mask_input=False)
    return guides.VariationalDropout(model, "B", "weight", max_alpha=math.inf, drop_rate=rate)


def _spreads(grids: Mapping[str, Grid], cell: tuple[int, int]) -> Row:
    """Spreads at the data of one architecture, by rate and start."""
    named = {f"rate {rate:g}": row for rate, row in zip(RATES, grids[FIXED][cell], strict=True)}
    for kind in (BERNOULLI, GAUSSIAN):
        named |= {f"{kind}, from {start:g}": row for start, row in zip(STARTS, grids[kind][cell], strict=True)}
    return {name: row["at the data"] for name, row in named.items()}


def _by_place(grids: Mapping[str, Grid], processes: Mapping[int, Row], cells: list[tuple[int, int]]) -> dict[str, Row]:
    """Spreads at the data, between the clusters and outside."""
    rows = {
        f"{depth} x {width}": {f"{place}, rate .1": grids[FIXED][width, depth][1][place] for place in PLACES}
        | {f"{place}, {GAUSSIAN}": grids[GAUSSIAN][width, depth][0][place] for place in PLACES}
        for width, depth in cells
    }
    for depth, row in processes.items():
        rows[f"{depth} hidden, Gaussian process"] = {f"{place}, exact": row[place] for place in PLACES}
    return rows


def _points() -> Tensor:
    return torch.cat([torch.linspace(low, high, 10) for low, high in PLACES.values()])[:, None]


def _inside(x: Tensor, ends: tuple[float, float]) -> Tensor:
    return (x >= ends[0] - 1e-6) & (x <= ends[1] + 1e-6)
