"""The distance of importance-weighted bounds from the log evidence, in linear regression, where this is known.

    y = X w + N(0, 1 / 4),   w ~ N(0, I),   X [30, 5] with correlated columns
    bound_k = E ln[(1 / k) sum_j p(y, w_j) / q(w_j)],   w_j ~ q              k = 1 is the ELBO

q is a factorised Gaussian, trained by the ELBO or by the bound of ten draws (`pyro.infer.RenyiELBO` with alpha 0).
Burda, Grosse & Salakhutdinov (2016), Importance Weighted Autoencoders, arXiv:1509.00519, theorem 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer import RenyiELBO
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.lab.experiments.critiques.panel import Size, sized
from pyrodrop.analysis.reports.console import core_seconds

TITLE = "log evidence less the bound of k draws, nats"
FAULT = "trained by the ELBO"
ROWS, COLUMNS, PRECISION = 30, 5, 4.0
DRAWS = (1, 10, 100, 1000)
STEPS: dict[Size, int] = {"default": 3000, "quick": 20}
REPEATED = 200_000  # total number of draws of q for each bound


def problem(seed: int) -> tuple[Tensor, Tensor]:
    """x and y, with columns that share half of their variance."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(ROWS, 1, generator=generator)
    x = (torch.randn(ROWS, COLUMNS, generator=generator) + shared) / math.sqrt(2)
    w = torch.randn(COLUMNS, 1, generator=generator)
    return x, x @ w + PRECISION**-0.5 * torch.randn(ROWS, 1, generator=generator)


def log_evidence(x: Tensor, y: Tensor) -> float:
    """ln N(y; 0, X X' + I / precision)."""
    x, y = x.double(), y.double()
    covariance = x @ x.T + torch.eye(len(x), dtype=torch.float64) / PRECISION
    return float(MultivariateNormal(torch.zeros(len(x), dtype=torch.float64), covariance).log_prob(y[:, 0]))


def log_weights(fit: Any, x: Tensor, y: Tensor, count: int, seed: int) -> Tensor:
    """ln p(y, w) - ln q(w) of draws from q, in float64."""
    q = fit.guide.posterior("weight")
    mean, sd = q.mean.detach().double()[0], q.variance.detach().double()[0].sqrt()
    noise = torch.randn(count, COLUMNS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w = mean + sd * noise
    likelihood = Normal(w @ x.double().T, PRECISION**-0.5).log_prob(y.double()[:, 0]).sum(1)
    return likelihood + Normal(0.0, 1.0).log_prob(w).sum(1) - Normal(mean, sd).log_prob(w).sum(1)


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """The distance of every bound from the log evidence, and core-seconds of training."""
    x, y = problem(seed)
    evidence, steps, rows = log_evidence(x, y), sized(STEPS, size), {}
    for name, loss in {FAULT: None, "trained by the bound of 10 draws": RenyiELBO(alpha=0, num_particles=10)}.items():
        start = core_seconds()
        net = nn.Linear(COLUMNS, 1, bias=False)
        nn.init.zeros_(net.weight)
        model = models.from_module(net, priors.Gaussian(1.0), likelihoods.Gaussian(PRECISION))
        fit = pyrodrop.fit(
            model, guides.MeanField(model), (x, y), steps=steps, lr=0.02, lr_schedule=schedules.cosine(steps),
            objective=loss, device="cpu", seed=seed, progress=False,
        )  # fmt: skip
        cost = core_seconds() - start
        weights = log_weights(fit, x, y, REPEATED, seed)
        rows[name] = {
            f"k = {k}": evidence - float((weights.view(-1, k).logsumexp(1) - math.log(k)).mean()) for k in DRAWS
        } | {"core-seconds": cost}
    return rows
