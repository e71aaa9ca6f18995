"""The log evidence of a problem whose posterior was sampled, by thermodynamic integration.

    ln Z = ln E_prior[L(w)^b] + int_b^1 E_beta[ln L(w)] d beta,        L(w) = p(y | x, w),   p_beta(w) ~ p(w) L(w)^beta

b is so small that the first mean over draws of the prior has an effective number of draws of at least half of them. Between
b and 1 powers differ by a factor, and the chains of each start where those of the next larger one end. With t = ln beta the
integrand is g = beta E_beta[ln L] with derivative g' = g + beta^2 Var_beta[ln L]. The trapezoid rule is corrected by these
derivatives in every piece; h is the logarithm of the factor:

    int g dt = sum_i h (g_i + g_i+1) / 2 + h^2 (g'_i - g'_i+1) / 12 + O(h^4)

``python -m pyrodrop.analysis.lab.experiments.references.evidence PROBLEM ...`` updates ``evidence.json`` of the references
after every problem.

Friel, Hurn & Wyse (2014), Improving power posterior estimation of statistical evidence, arXiv:1209.3198, equation 10.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments.references.stored import load
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.likelihoods.shapes import aligned
from pyrodrop.sampling import Sampled
from pyrodrop.zoo.exact import PROBLEMS

PRIOR_DRAWS = 8192
CHAINS, DRAWS, TUNE = 32, 64, 100  # for every power
FILE = RESULTS / "evidence.json"
AT_ONCE = 256  # sets of weights per call of the network


def log_evidence(
    exact: Sampled, data: Dataset, *, seed: int, factor: float = 2.0, progress: bool | None = None
) -> float:
    """ln p(y | x) of the data, in nats.

    Args:
        exact: draws of the posterior of a network whose latent sites are weights and biases.
        data: training data of this posterior.
        seed: seed of all draws.
        factor: factor between powers, above 1. The error is of fourth order in its logarithm, plus Monte Carlo error.
        progress: as in `pyrodrop.sample`.
    """
    prior = log_likelihood(exact, prior_draws(exact, data, PRIOR_DRAWS, seed), data)
    pieces = next(n for n in itertools.count() if _effective(factor**-n * prior) >= PRIOR_DRAWS / 2)
    powers, now = factor ** -np.arange(pieces + 1.0), exact
    values = [log_likelihood(exact, now.sites(), data)]
    for power in powers[1:]:
        now = pyrodrop.sample(
            exact.model, data, start=now, chains=CHAINS, draws=DRAWS, tune=TUNE, likelihood_power=float(power),
            device="cpu", seed=seed, progress=progress,
        )  # fmt: skip
        values.append(log_likelihood(exact, now.sites(), data))
    first = float((powers[-1] * prior).logsumexp(0)) - math.log(PRIOR_DRAWS)
    return first + _integral(powers, values, math.log(factor))


def log_likelihood(exact: Sampled, weights: Mapping[str, Tensor], data: Dataset) -> Tensor:
    """ln p(y | x, w) of sets of weights ``[S, ...]`` by name, in float64, ``[S]``."""
    y, parts = exact.model.likelihood.as_target(data.y), []
    for some in zip(*(value.split(AT_ONCE) for value in weights.values()), strict=True):
        distribution = exact.distribution_of(dict(zip(weights, some, strict=True)), data.x, len(some[0]))
        parts.append(distribution.log_prob(aligned(y, distribution)).double().sum(1))
    return torch.cat(parts)


def prior_draws(exact: Sampled, data: Dataset, count: int, seed: int) -> dict[str, Tensor]:
    """Draws of the prior, ``[count, ...]`` by name."""
    with seeded(seed, torch.device("cpu")), torch.no_grad():
        drawn = Predictive(exact.model, num_samples=count)(data.x[:1])
    return {name: drawn[name].reshape(count, *value.shape[2:]) for name, value in exact.samples.items()}


def _effective(log_weights: Tensor) -> float:
    """The effective number of weighted draws, (sum w)^2 / sum w^2."""
    return math.exp(2 * float(log_weights.logsumexp(0)) - float((2 * log_weights).logsumexp(0)))


def _integral(powers: np.ndarray, values: Sequence[Tensor], h: float) -> float:
    """The integral of E_beta[ln L] over beta, from draws of ln L at every power, in descending order."""
    g = powers * [float(value.mean()) for value in values]
    slopes = g + powers**2 * [float(value.var()) for value in values]
    return float(h * (g[1:] + g[:-1]).sum() / 2 + h**2 * (slopes[-1] - slopes[0]) / 12)


if __name__ == "__main__":
    for name in sys.argv[1:] or PROBLEMS:
        value: float = log_evidence(load(name), PROBLEMS[name].data()[0], seed=0)
        write_json(FILE, {**(read_record(FILE).content if FILE.exists() else {}), name: value})
        print(f"{name}: log evidence {value:.1f} nats")
