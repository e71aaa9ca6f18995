"""Balabanov, Mehlig & Linander (2023): are ensembles of dropout networks nearer to the posterior than deep ensembles?

The regression of Foong et al. with one hidden layer, sampled exactly; single networks and ensembles are compared with the
samples along the diagonal by the distances of `pyrodrop.compare(..., reference=...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import pyrodrop
from pyrodrop import guides
from pyrodrop.analysis.experiments.critiques import foong
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size, sized
from pyrodrop.analysis.experiments.critiques.training import fitted, learning_rate
from pyrodrop.analysis.reports.style import BLUE, GREY, png, styled
from pyrodrop.data import Dataset, foong2020
from pyrodrop.guides import Guide

DRAWS, RATE = 1000, 0.05
SAMPLES, POINT, DROPOUT = "HMC, two independent sets of samples", "point", "MC dropout, rate .05"
GUIDES: Mapping[str, Callable[[Any], Guide]] = {
    POINT: guides.Point,
    DROPOUT: lambda model: guides.BernoulliDropout(model, RATE, mask_input=False),
    "MC dropout, learned rates": lambda model: guides.ConcreteDropout(model, "input", mask_input=False),
    "mean field": guides.MeanField,
}
DISTANCE = "total_variation"
SHOWN = (DISTANCE, "wasserstein", "covariance")
SIZES: dict[Size, tuple[int, int, int]] = {  # ensembles, members of each, steps
    "default": (3, 5, 4000),
    "quick": (2, 2, 40),
}


def panel(size: Size, seed: int) -> Panel:
    """The panel: mean distances of single networks and of ensembles of different starts."""
    groups, members, steps = sized(SIZES, size)
    table, ensembles, mixed = distances(groups, members, steps, sized(foong.CHAINS, size)[1], seed)
    gain = ensembles[POINT] - ensembles[DROPOUT]
    error = float(gain.std(ddof=1) / math.sqrt(groups))
    return Panel(
        title="In favour: ensembles of dropout networks, compared with deep ensembles",
        paper="Balabanov, Mehlig & Linander (2023), Bayesian posterior approximation with stochastic ensembles",
        link="https://arxiv.org/abs/2212.08123",
        shown=(
            "The paper compares ensembles of networks with and without dropout with Hamiltonian Monte Carlo, on a toy "
            "problem and on CIFAR, and finds those with dropout nearer. The statements below say whether that is seen for "
            "the regression of Foong et al. with one hidden layer, along the diagonal: total variation of the predictive "
            "distribution of y, Wasserstein distance of f per point, and distance of the covariance between points. "
            f"Means of {groups} ensembles of {members} networks each."
        ),
        tables={"distance from the sampled posterior": table, "chains": {"R-hat of f, mixed below 1.05": {"": mixed}}},
        facts={
            "an ensemble of dropout networks is nearer in total variation than a deep ensemble, by two s.e.": bool(
                gain.mean() > 2 * error
            ),
            "a single dropout network is nearer in total variation than a single network without dropout": (
                table[DROPOUT][DISTANCE] < table[POINT][DISTANCE]
            ),
            "every ensemble is nearer in total variation than its single networks": all(
                table[f"ensemble of {name}"][DISTANCE] < table[name][DISTANCE] for name in GUIDES
            ),
        },
        helps=(
            *(
                f"{name}: total variation {table[name][DISTANCE]:.3f} alone, {table[f'ensemble of {name}'][DISTANCE]:.3f} "
                f"as an ensemble of {members}."
                for name in GUIDES
            ),
            f"Deep ensemble less ensemble of dropout networks: {gain.mean():.3f} (s.e. {error:.3f}).",
        ),
        figure=png(_figure(table)),
    )


def distances(
    groups: int, members: int, steps: int, chains: dict[str, Any], seed: int
) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray], float]:
    """Mean distances by posterior, the total variation of every ensemble, and R-hat of f of the reference."""
    data, model = foong2020().train, foong.network(1)
    t, _ = foong.published_slice()
    x = (t / math.sqrt(2))[:, None].expand(-1, 2).contiguous()
    points = Dataset(x, torch.zeros(len(x), 1))  # no observations: no log density is shown
    reference = pyrodrop.sample(model, data, seed=seed, device="cpu", progress=False, **chains)
    runs: dict[str, Any] = {}
    for name, guide in GUIDES.items():
        torch.manual_seed(seed)
        fits = fitted(
            model,
            guide(model),
            data,
            count=groups * members,
            steps=steps,
            lr=learning_rate,
            seed=seed,
        )
        for group in range(groups):
            group_fits = fits[group * members : (group + 1) * members]
            runs[f"{name}/{group}"] = group_fits[0]
            runs[f"ensemble of {name}/{group}"] = pyrodrop.Replicates(group_fits)
    compared = pyrodrop.compare(runs, points, reference=reference, num_samples=DRAWS, seed=seed)
    itself = compared.reference or {}
    table = {SAMPLES: {key: float(itself[key] or 0) for key in SHOWN}}
    ensembles = {}
    for name in (*GUIDES, *(f"ensemble of {name}" for name in GUIDES)):
        rows = [compared.rows[f"{name}/{group}"] for group in range(groups)]
        values = {key: np.array([float(row[key] or 0) for row in rows]) for key in SHOWN}
        table[name] = {key: float(column.mean()) for key, column in values.items()}
        ensembles[name.removeprefix("ensemble of ")] = values[DISTANCE]
    return table, ensembles, reference.diagnostics(x).r_hat_f


@styled()
def _figure(table: Mapping[str, Mapping[str, float]]) -> Figure:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    names = sorted(table, key=lambda name: -table[name][DISTANCE])
    colours = [BLUE if name.startswith("ensemble") else GREY for name in names]
    bars = axes.barh(names, [table[name][DISTANCE] for name in names], color=colours, height=0.6)
    axes.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
    axes.set(xlabel="total variation distance from samples, mean over x")
    return figure
