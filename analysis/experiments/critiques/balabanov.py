"""Balabanov, Mehlig & Linander (2023): ensembles of dropout networks are nearer to the exact posterior than deep ensembles.

A classification in the plane with three classes, sampled exactly; every approximation is compared with the samples by the
distances of `pyrodrop.compare(..., reference=...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.experiments.critiques.learning_rates import learning_rate
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size, sized
from pyrodrop.analysis.reports.style import BLUE, GREY, png, styled
from pyrodrop.data import Dataset
from pyrodrop.guides import Guide

ROWS, TEST, DRAWS, WIDTH, CLASSES = 60, 300, 1000, 20, 3
MAX_STEPS = 100  # leapfrog steps per transition
GUIDES: Mapping[str, Callable[[Any], Guide]] = {
    "point": guides.Point,
    "MC dropout, rate .1": lambda model: guides.BernoulliDropout(model, 0.1, mask_input=False),
    "MC dropout, learned rates": lambda model: guides.ConcreteDropout(model, "input", mask_input=False),
    "mean field": guides.MeanField,
}
SAMPLES = "HMC, two independent sets of samples"
SHOWN = ("total_variation", "agreement")
SIZES: dict[Size, tuple[int, int, int, tuple[int, int, int]]] = {  # data sets, members, steps; chains, draws, tuning
    "default": (3, 8, 3000, (32, 60, 200)),
    "quick": (1, 2, 40, (4, 8, 100)),
}


def panel(size: Size, seed: int) -> Panel:
    """The panel: distances averaged over data sets, of single networks and of ensembles."""
    sets, members, steps, chains = sized(SIZES, size)
    every = [distances(seed + number, members, steps, chains) for number in range(sets)]
    names = list(every[0])
    values = {name: {key: np.array([one[name][key] for one in every]) for key in every[0][name]} for name in names}
    table = {name: {key: float(own.mean()) for key, own in row.items()} for name, row in values.items()}
    deep, dropouts = f"ensemble of {members} x point", f"ensemble of {members} x MC dropout, rate .1"
    gain = values[deep]["total_variation"] - values[dropouts]["total_variation"]
    error = float(gain.std(ddof=1) / math.sqrt(sets)) if sets > 1 else 0.0
    return Panel(
        title="In favour: ensembles of dropout networks are nearer to the posterior than deep ensembles",
        paper="Balabanov, Mehlig & Linander (2023), Bayesian posterior approximation with stochastic ensembles",
        link="https://arxiv.org/abs/2212.08123",
        shown=(
            "The paper compares ensembles of networks with and without dropout with Hamiltonian Monte Carlo and finds those "
            f"with dropout nearer. Here {ROWS} observations of three classes in the plane, a network "
            f"2-{WIDTH}-{CLASSES}, and samples of its exact posterior: the total variation distance of the predictive class "
            f"probabilities, and the share of points with the same most probable class, mean of {sets} data sets."
        ),
        tables={f"distance from the sampled posterior at {TEST} points, mean of {sets} data sets": table},
        facts={
            "an ensemble of dropout networks is nearer in total variation than a deep ensemble, by two s.e.": bool(
                gain.mean() > 2 * error
            ),
            "every ensemble is nearer in total variation than its single networks": all(
                table[f"ensemble of {members} x {name}"]["total_variation"] < table[name]["total_variation"]
                for name in GUIDES
            ),
        },
        helps=tuple(
            f"{name}: total variation {table[name]['total_variation']:.3f} alone, "
            f"{table[f'ensemble of {members} x {name}']['total_variation']:.3f} as an ensemble of {members}."
            for name in GUIDES
        )
        + (f"Deep ensemble less ensemble of dropout networks: {gain.mean():.3f} (s.e. {error:.3f}).",),
        figure=png(_figure(table)),
    )


def sample(seed: int) -> tuple[Dataset, Dataset]:
    """Three overlapping clusters of training data, and points all over the plane."""
    generator = torch.Generator().manual_seed(seed)
    angles = torch.arange(CLASSES) * (2 * math.pi / CLASSES)
    y = torch.arange(ROWS) % CLASSES
    centres = 1.2 * torch.stack([angles.cos(), angles.sin()], 1)[y]
    test_x = 5 * torch.rand(TEST, 2, generator=generator) - 2.5
    nearest = (test_x @ torch.stack([angles.cos(), angles.sin()])).argmax(1)
    return Dataset(centres + 0.8 * torch.randn(ROWS, 2, generator=generator), y), Dataset(test_x, nearest)


def network() -> models.MLP:
    """2-20-3 with tanh units."""
    return models.MLP(
        [2, WIDTH, CLASSES],
        "tanh",
        prior={"layers.0.*": priors.Gaussian(1.0), "*": priors.Gaussian(4 / math.sqrt(WIDTH))},
        likelihood=likelihoods.Categorical(),
        bias_prior=priors.Gaussian(1.0),
    )


def distances(seed: int, members: int, steps: int, chains: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """Distances from the sampled posterior on one data set, by posterior; those of single networks are means of members."""
    train, test = sample(seed)
    number, draws, tune = chains
    reference = pyrodrop.sample(
        network(),
        train,
        chains=number,
        draws=draws,
        tune=tune,
        max_steps=MAX_STEPS,
        seed=seed,
        device="cpu",
        progress=False,
    )
    runs: dict[str, Any] = {}
    for name, guide in GUIDES.items():
        torch.manual_seed(seed)
        model = network()
        fits = pyrodrop.fit_replicates(
            model,
            guide(model),
            train,
            count=members,
            steps=steps,
            lr=learning_rate,
            lr_schedule=schedules.cosine(steps),
            estimator="local",
            starts="new",
            seed=seed,
            device="cpu",
            progress=False,
        )
        runs |= {f"{name}/{member}": fit for member, fit in enumerate(fits)}
        runs[f"ensemble of {members} x {name}"] = fits
    mixing = reference.settings["diagnostics"]
    compared = pyrodrop.compare(runs, test, reference=reference, num_samples=DRAWS, seed=seed)
    rows, itself = compared.rows, compared.reference or {}
    found: dict[str, dict[str, float]] = {
        SAMPLES: {key: float(itself[key] or 0) for key in SHOWN} | {"R-hat of f": mixing["r_hat_f"]}
    }
    for name in GUIDES:
        own = [rows[f"{name}/{member}"] for member in range(members)]
        found[name] = {key: float(np.mean([row[key] for row in own])) for key in SHOWN}
        together = rows[f"ensemble of {members} x {name}"]
        found[f"ensemble of {members} x {name}"] = {key: float(together[key]) for key in SHOWN}  # type: ignore[arg-type]
    return found


@styled()
def _figure(table: Mapping[str, Mapping[str, float]]) -> Figure:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    names = sorted(table, key=lambda name: -table[name]["total_variation"])
    colours = [BLUE if name.startswith("ensemble") else GREY for name in names]
    bars = axes.barh(names, [table[name]["total_variation"] for name in names], color=colours, height=0.6)
    axes.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
    axes.set(xlabel="total variation distance from the sampled posterior, mean over points")
    return figure
