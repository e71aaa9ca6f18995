"""Le Folgoc et al. (2021): dropout gives the true parameter probability 0, and its modes are artefacts.

See `two_weights` for the closed forms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.experiments.critiques import two_weights
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size, sized
from pyrodrop.analysis.reports.style import BLACK, SERIES, png, styled

ROWS, RATE, SETS = 10, 0.1, 50
STEPS: dict[Size, int] = {"default": 6000, "quick": 200}
COUNTS = (10, 100, 1000, 10_000)
POINT = np.array([1.0, -1.0])  # where f is shown, across the correlation of the inputs
TYPICAL = np.array([1.0, 1.0])  # along it
LOW_RANK = "low rank (rank 1), trained"


def panel(size: Size, seed: int) -> Panel:
    """The panel; the seed sets the data."""
    x, y = two_weights.sample(ROWS, seed)
    posterior, evidence = two_weights.exact(x, y), two_weights.log_evidence(x, y)
    thick, thick_elbo, theta, _ = two_weights.thickened(x, y, RATE)
    learned, learned_elbo, learned_theta, learned_rate = two_weights.thickened(x, y, None)
    factorised, low_rank = two_weights.factorised(x, y), trained_low_rank(x, y, sized(STEPS, size), seed)
    rate = "below 1e-6" if learned_rate < 1e-6 else f"{learned_rate:.2g}"
    named = {
        "exact": posterior,
        f"dropout, rate {RATE:g}": two_weights.dropout(x, y, RATE),
        f"mixture, rate {RATE:g}, theta {theta:.3f}": thick,
        f"mixture, learned rate {rate}, theta {learned_theta:.3f}": learned,
        "mean field": factorised,
        LOW_RANK: low_rank,
    }
    mean_field_gap, low_rank_gap = (two_weights.divergence(q, posterior) for q in (factorised, low_rank))
    gaps = (0.0, None, evidence - thick_elbo, evidence - learned_elbo, mean_field_gap, low_rank_gap)
    table = {name: _row(distribution, gap) for (name, distribution), gap in zip(named.items(), gaps, strict=True)}
    far = concentration(seed)
    drop, mixture = (table[name] for name in list(table)[1:3])
    return Panel(
        title="The true parameter has probability 0, and modes are artefacts",
        paper="Le Folgoc et al. (2021), Is MC Dropout Bayesian?",
        link="https://arxiv.org/abs/2110.04286",
        shown=(
            "A linear regression with two weights and correlated inputs, where the exact posterior is a Gaussian. MC "
            "dropout is four atoms: no neighbourhood of the true weights that is free of atoms has any probability, and the "
            "four modes of its predictions belong to the masks, not to the posterior. With more data the nearest atom does "
            "not approach the truth: its distance in posterior standard deviations grows as sqrt(N), since the noise of the "
            "masks also biases the means."
        ),
        tables={
            f"N = {ROWS}; f at x = ({POINT[0]:g}, {POINT[1]:g})": table,
            "nearest atom, or mean: distance from the true weights in posterior standard deviations, root mean square "
            f"over {SETS} data sets": far,
        },
        facts={
            "the density of f has one mode in the exact posterior and four under dropout": (
                table["exact"]["modes of f"] == 1 and drop["modes of f"] == 4
            ),
            "the distance of dropout's nearest atom grows at least 5 times from N = 100 to N = 10,000": (
                far["dropout"]["N = 10000"] > 5 * far["dropout"]["N = 100"]
            ),
            "the mean of the exact posterior stays at sqrt(2), within 20 %": all(
                abs(value / math.sqrt(2) - 1) < 0.2 for value in far["exact"].values()
            ),
            "mean field with low rank is nearer to the posterior than mean field": low_rank_gap < mean_field_gap,
        },
        helps=(
            f"theta > 0: the learned theta is {theta:.3f} at rate {RATE:g}. The KL divergence from the posterior becomes "
            f"finite, {evidence - thick_elbo:.2f} nats, and ln q at the true weights {mixture['ln q(true weights)']:.2f} "
            f"(exact {table['exact']['ln q(true weights)']:.2f}), but {mixture['modes of f']} modes of f are left.",
            f"Learning the rate too: it becomes {rate}, the modes go, and the divergence is nearly that of mean field, "
            f"{evidence - learned_elbo:.3f} nats (mean field {mean_field_gap:.3f}).",
            "Low rank: a Gaussian of rank 1 plus a diagonal contains this posterior. `guides.LowRank`, trained for "
            f"{sized(STEPS, size):,} steps, is {low_rank_gap:.3f} nats from it.",
        ),
        figure=png(_figure(named)),
    )


def concentration(seed: int) -> dict[str, dict[str, float]]:
    """Distance of the nearest atom (dropout) or of the mean (exact) from the true weights, by N."""
    rows: dict[str, dict[str, float]] = {"dropout": {}, "exact": {}}
    for n in COUNTS:
        squares = np.zeros(2)
        for number in range(SETS):
            x, y = two_weights.sample(n, seed + number)
            posterior = two_weights.exact(x, y)
            distributions = (two_weights.dropout(x, y, RATE), posterior)
            squares += [two_weights.distance(posterior, d, two_weights.TRUE) ** 2 for d in distributions]
        for row, value in zip(rows.values(), squares, strict=True):
            row[f"N = {n}"] = math.sqrt(value / SETS)
    return rows


def trained_low_rank(x: np.ndarray, y: np.ndarray, steps: int, seed: int) -> two_weights.Mixture:
    """The guide `LowRank` of this model after training."""
    torch.manual_seed(seed)
    model = models.from_module(
        nn.Linear(2, 1, bias=False), priors.Gaussian(1.0), likelihoods.Gaussian(two_weights.NOISE**-2)
    )
    fit = pyrodrop.fit(
        model,
        guides.LowRank(model, rank=1, init_scale=0.1, seed=None),
        (torch.tensor(x).float(), torch.tensor(y).float()[:, None]),
        steps=steps,
        lr=0.02,
        lr_schedule=schedules.cosine(steps),
        seed=seed,
        device="cpu",
        progress=False,
    )
    q = fit.guide.posterior("weight")  # type: ignore[attr-defined]
    factor, variance = (value.detach().double().numpy() for value in (q.factor, q.diagonal))
    mean = q.mean.detach().double().numpy().reshape(1, 2)
    return two_weights.Mixture(np.ones(1), mean, factor @ factor.T + np.diag(variance))


def _row(distribution: two_weights.Mixture, gap: float | None) -> dict[str, Any]:
    density = distribution.log_density(two_weights.TRUE)
    return {
        "KL from the posterior": "infinite" if gap is None else gap,
        "ln q(true weights)": density if math.isfinite(density) else "probability 0",
        "sd of f": math.sqrt(float(POINT @ distribution.total @ POINT)),
        "sd of f at (1, 1)": math.sqrt(float(TYPICAL @ distribution.total @ TYPICAL)),
        "modes of f": two_weights.modes(distribution, POINT),
    }


@styled()
def _figure(named: dict[str, two_weights.Mixture]) -> Figure:
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    _plane(left, named)
    colours = dict(zip(named, (BLACK, *SERIES[1:4], SERIES[0], SERIES[4]), strict=True))
    f = np.linspace(-1.5, 4, 800)
    for name, distribution in named.items():
        weights, means, sd = distribution.along(POINT)
        if sd == 0:
            right.vlines(means, 0, weights, color=colours[name], linewidth=2, label=f"{name} (probabilities)")
            right.plot(means, weights, "o", color=colours[name], markersize=4)
        else:
            parts = weights * np.exp(-(((f[:, None] - means) / sd) ** 2) / 2) / (sd * math.sqrt(2 * math.pi))
            right.plot(f, parts.sum(1), color=colours[name], linewidth=1.2, label=name)
    right.set(title="density of f at x = (1, -1)", xlabel="f")
    right.set_ylim(0, 1.6 * right.get_ylim()[1])
    right.legend(fontsize=7, loc="upper right")
    return figure


def _plane(axes: Axes, named: dict[str, two_weights.Mixture]) -> None:
    """The weights' plane: the density of the posterior, dropout's atoms, and the truth."""
    first, second = list(named.values())[:2]
    w = np.linspace(-0.9, 3.1, 200)
    grid = np.stack(np.meshgrid(w, w), -1)
    away = grid - first.mean
    radius = np.sqrt(np.einsum("...i,ij,...j->...", away, np.linalg.inv(first.covariance), away))
    axes.contour(w, w, radius, levels=[1, 2, 3], colors=[BLACK], linewidths=0.8)
    axes.scatter(
        second.means[:, 0],
        second.means[:, 1],
        s=20 + 300 * second.weights,
        color=SERIES[1],
        label="dropout's atoms",
        zorder=3,
    )
    axes.plot(*two_weights.TRUE, "*", color=SERIES[2], markersize=11, label="true weights", zorder=4)
    axes.plot([], [], color=BLACK, linewidth=0.8, label="posterior, 1 to 3 sd")
    axes.set(title="two weights", xlabel="w₁", ylabel="w₂", xlim=(-0.9, 3.1), ylim=(-0.9, 3.1), aspect="equal")
    axes.legend(fontsize=7, loc="upper right")
