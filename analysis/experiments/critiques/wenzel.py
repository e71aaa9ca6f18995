"""Wenzel et al. (2020): is the posterior at power 1 of the likelihood the best one?

    q_b(w)  for  p(y | w)^b p(w)              b = 1 is Bayes; b > 1 is colder, b < 1 warmer

The data are drawn from the model itself, network weights from the prior and observations from the likelihood, so that the
exact posterior at b = 1 is optimal on average: a best power elsewhere is a property of the approximation. For Gaussian noise
of precision tau the posterior at power b is that of precision b tau, so all powers and data sets of one posterior are
replicates; predictions always have precision tau. Wenzel et al. also raise the prior to the power 1 / T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size, sized
from pyrodrop.analysis.experiments.critiques.training import fitted, learning_rate
from pyrodrop.analysis.reports.style import BLACK, GREY, SERIES, png, styled
from pyrodrop.data import Dataset
from pyrodrop.guides import Guide

NOISE, ROWS, TEST, DRAWS, WIDTH = 0.3, 40, 400, 500, 20
POWERS = (0.1, 0.3, 1.0, 3.0, 10.0)
SAMPLED = "HMC"
MAX_STEPS = 60  # leapfrog steps per transition
GUIDES: Mapping[str, Callable[[Any], Guide]] = {
    "MC dropout, rate .1": lambda model: guides.BernoulliDropout(model, 0.1, mask_input=False),
    "MC dropout, learned rates": lambda model: guides.ConcreteDropout(model, "input", mask_input=False),
    "mean field": guides.MeanField,
}
SIZES: dict[Size, tuple[int, int, tuple[int, int, int]]] = {  # data sets, steps; chains, draws, tuning
    "default": (3, 3000, (32, 120, 250)),
    "quick": (2, 40, (4, 8, 100)),
}


def panel(size: Size, seed: int) -> Panel:
    """The panel: held-out log density by power, averaged over data sets."""
    sets, steps, chains = sized(SIZES, size)
    problems = [drawn(seed + number) for number in range(sets)]
    densities = {name: trained(guide, problems, steps, seed) for name, guide in GUIDES.items()}
    densities[SAMPLED], mixing = sampled(problems, chains, seed)  # each [powers, sets]
    bayes = POWERS.index(1.0)
    best = {name: int(values.mean(1).argmax()) for name, values in densities.items()}
    table = {
        name: {f"power {power:g}": float(row.mean()) for power, row in zip(POWERS, values, strict=True)}
        | {"best power": POWERS[best[name]]}
        for name, values in densities.items()
    }
    gains = {name: _gain(values, best[name], bayes) for name, values in densities.items()}
    exact = densities[SAMPLED][bayes]
    dropout = next(iter(GUIDES))
    return Panel(
        title="Cold posteriors: the power of the likelihood that predicts best",
        paper="Wenzel et al. (2020), How Good is the Bayes Posterior in Deep Neural Networks Really?",
        link="https://arxiv.org/abs/2002.02405",
        shown=(
            f"Held-out log density per observation over the power of the likelihood, mean of {sets} data sets of {ROWS} "
            "observations that are drawn from the model itself. There the exact posterior is optimal at power 1, so that a "
            "better power of an approximation compensates for the approximation, and not for the prior or the likelihood, "
            "as it may in the image classifiers of the paper."
        ),
        tables={
            "log density per held-out observation, nats": table,
            "gain of the best power over power 1, paired over data sets": gains,
            "largest R-hat of f of all chains (mixed below 1.05)": mixing,
        },
        facts={
            "the chains at power 1 have mixed (R-hat of f below 1.05)": mixing["power 1"]["R-hat of f"] < 1.05,
            "the chains at all powers have mixed": all(row["R-hat of f"] < 1.05 for row in mixing.values()),
            "sampling: power 1 is best, or within two s.e. of the best": (
                gains[SAMPLED]["gain"] <= 2 * gains[SAMPLED]["s.e."] + 1e-12
            ),
            "sampling at power 1 predicts better than every approximation at its best power": all(
                float((exact - values[best[name]]).mean()) > 0 for name, values in densities.items() if name != SAMPLED
            ),
            "MC dropout with a fixed rate is best at a power above 1": POWERS[best[dropout]] > 1,
        },
        helps=tuple(
            f"{name}: best at power {POWERS[best[name]]:g}, {gains[name]['gain']:.3f} nats (s.e. {gains[name]['s.e.']:.3f}) "
            f"above power 1; there {float((exact - values[best[name]]).mean()):.3f} nats below exact inference, at power 1 "
            f"{float((exact - values[bayes]).mean()):.3f}."
            for name, values in densities.items()
            if name != SAMPLED
        ),
        figure=png(_figure(densities)),
    )


def network(power: float = 1.0) -> models.MLP:
    """2-20-1 with tanh units; the likelihood has `power` times the precision of the noise."""
    return models.MLP(
        [2, WIDTH, 1],
        "tanh",
        prior={name: priors.Gaussian(_scale(name)) for name in ("layers.0.weight", "layers.1.weight")},
        likelihood=likelihoods.Gaussian(power * NOISE**-2),
        bias_prior=priors.Gaussian(1.0),
    )


def _scale(name: str) -> float:
    """Standard deviation of a weight or bias under the prior."""
    if name.endswith("bias"):
        return 1.0
    return 2.0 if name.startswith("layers.0") else 2 / math.sqrt(WIDTH)


def drawn(seed: int) -> tuple[Dataset, Dataset]:
    """Training and test data of a network with weights from the prior."""
    generator = torch.Generator().manual_seed(seed)
    model = network()
    weights = {
        name: _scale(name) * torch.randn(weight.shape, generator=generator)
        for name, weight in model.weight_sites().items()
    }
    x = torch.randn(ROWS + TEST, 2, generator=generator)
    with torch.no_grad():
        y = model.outputs(weights, x) + NOISE * torch.randn(len(x), 1, generator=generator)
    data = Dataset(x, y)
    return data.first(ROWS), data.rows(slice(ROWS, None))


def log_density(f: Tensor, y: Tensor) -> float:
    """Mean log density of y ``[N, 1]`` under the mixture of N(f_s, noise variance), f ``[S, N, 1]``."""
    distribution = torch.distributions.Normal(f.double(), NOISE)
    return float((distribution.log_prob(y.double()).logsumexp(0) - math.log(len(f))).mean())


def trained(
    guide: Callable[[Any], Guide], problems: list[tuple[Dataset, Dataset]], steps: int, seed: int
) -> np.ndarray:
    """Log densities ``[powers, sets]`` of one posterior, all trained together."""
    torch.manual_seed(seed)
    several = [network(power) for power in POWERS for _ in problems]
    fits = fitted(
        several,
        [guide(model) for model in several],
        [train for _ in POWERS for train, _ in problems],
        count=len(several),
        steps=steps,
        lr=learning_rate,
        seed=seed,
    )
    tests = [test for _ in POWERS for _, test in problems]
    values = [
        log_density(fit.predict(test.x, DRAWS, seed=seed).f, test.y) for fit, test in zip(fits, tests, strict=True)
    ]
    return np.array(values).reshape(len(POWERS), len(problems))


def sampled(
    problems: list[tuple[Dataset, Dataset]], chains: tuple[int, int, int], seed: int
) -> tuple[np.ndarray, dict[str, dict[str, float]]]:
    """The same of the exact posteriors, and the largest R-hat by power."""
    number, draws, tune = chains
    rows: list[list[float]] = []
    mixing: dict[str, dict[str, float]] = {}
    for power in POWERS:
        row = []
        for train, test in problems:
            run = pyrodrop.sample(
                network(),
                train,
                chains=number,
                draws=draws,
                tune=tune,
                max_steps=MAX_STEPS,
                likelihood_power=power,
                seed=seed,
                device="cpu",
                progress=False,
            )
            row.append(log_density(run.predict(test.x, DRAWS, seed=seed).f, test.y))
            worst = max(
                mixing.get(f"power {power:g}", {}).get("R-hat of f", 0.0), run.settings["diagnostics"]["r_hat_f"]
            )
            mixing[f"power {power:g}"] = {"R-hat of f": worst}
        rows.append(row)
    return np.array(rows), mixing


def _gain(values: np.ndarray, best: int, bayes: int) -> dict[str, float]:
    difference = values[best] - values[bayes]
    error = difference.std(ddof=1) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return {"best power": POWERS[best], "gain": float(difference.mean()), "s.e.": float(error)}


@styled()
def _figure(densities: Mapping[str, np.ndarray]) -> Figure:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, values), colour in zip(densities.items(), (*SERIES[: len(GUIDES)], BLACK), strict=True):
        axes.semilogx(POWERS, values.mean(1), "o-", color=colour, markersize=4, linewidth=1.3, label=name)
    axes.axvline(1, color=GREY, linestyle=":", linewidth=0.8)
    low = min(float(values.mean(1)[1:-1].min()) for values in densities.values())
    top = max(float(values.mean(1).max()) for values in densities.values())
    axes.set(ylim=(low - 0.3 * (top - low), top + 0.1 * (top - low)))
    axes.set(xlabel="power of the likelihood", ylabel="held-out log density, nats per observation")
    axes.legend(fontsize=8)
    return figure
