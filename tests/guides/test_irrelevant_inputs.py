"""Linear regression with inputs that do not matter, where the best posterior is known.

    y = X w + noise,  X' X = s I,  precision tau, S = tau s, w_ls least squares, alpha = v / m^2

    loss(m, v) = S [(m - w_ls)^2 + v] / 2 + KL(alpha), for every weight alone
    ARD:          alpha = 1 / (S w_ls^2 - 1),  m = w_ls - 1 / (S w_ls)    where S w_ls^2 > 1; else alpha infinite, m = 0
    log-uniform:  m = w_ls / (1 + alpha), alpha the minimum of S w_ls^2 alpha / (1 + alpha) / 2 + KL(alpha)

The first is Tipping & Faul's (2003) condition for a column of an orthogonal design to enter; the second is minimised here by
scipy, with the divergence as an integral of Dawson's function.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")

ROWS, TAU = 200, 4.0
S = TAU * ROWS  # columns have sum of squares ROWS
RELEVANT = [1.0, -0.6, 0.3, 0.2]
IRRELEVANT = [0.02, -0.01, 0.025, 0.0]  # S w^2 is .32, .08, .5 and 0: less than 1


def regression() -> tuple[Tensor, Tensor]:
    """Orthogonal columns, and noise that is orthogonal to them: least squares gives the weights as stated."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(ROWS, 9, generator=generator)).Q * math.sqrt(ROWS)
    x, noise = basis[:, :8], basis[:, 8:] / math.sqrt(TAU)
    return x, x @ torch.tensor([*RELEVANT, *IRRELEVANT])[:, None] + noise


def trained(prior: priors.Prior, guide: type[guides.SparseDropout]) -> tuple[Tensor, Tensor]:
    """ln alpha and mean of the eight weights."""
    net = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.1)
    model = models.from_module(net, prior=prior, likelihood=likelihoods.Gaussian(TAU))
    steps = 6000
    fit: Any = pyrodrop.fit(
        model, guide(model, log_variance=-7.0), regression(), steps=steps, lr=0.02, engine="traced",
        estimator="local", lr_schedule=lambda t: min(1.0, 2 * (1 - t / steps)) ** 2,
    )  # fmt: skip
    return fit.guide.log_alpha("weight").detach()[0], fit.guide.mean()["weight"][0]


@pytest.mark.slow
def test_ard_is_tipping_and_fauls_posterior() -> None:
    log_alpha, mean = trained(priors.ARD(), guides.ARDDropout)
    w = torch.tensor(RELEVANT)
    torch.testing.assert_close(log_alpha[:4], -torch.log(S * w**2 - 1), atol=0.15, rtol=0)
    torch.testing.assert_close(mean[:4], w - 1 / (S * w), atol=5e-3, rtol=0)
    assert bool((log_alpha[4:] > 3).all())
    assert float(mean[4:].abs().max()) < 2e-3


def divergence(alpha: float) -> float:
    """2 int_0^sqrt(1 / (2 alpha)) D(s) ds."""
    return 2 * float(integrate.quad(special.dawsn, 0, math.sqrt(1 / (2 * alpha)))[0])


def best_log_alpha(w: float) -> float:
    """By a search over ln alpha from -12 to 12."""
    loss = lambda t: S * w * w * special.expit(t) / 2 + divergence(math.exp(t))  # noqa: E731
    grid = np.linspace(-12, 12, 97)
    near = grid[int(np.argmin([loss(t) for t in grid]))]
    return float(optimize.minimize_scalar(loss, bounds=(near - 0.3, near + 0.3), method="bounded").x)


@pytest.mark.slow
def test_sparse_dropout_is_the_minimum_of_its_objective() -> None:
    log_alpha, mean = trained(priors.LogUniform(), guides.SparseDropout)
    want = [best_log_alpha(w) for w in RELEVANT]
    torch.testing.assert_close(log_alpha[:4], torch.tensor(want), atol=0.15, rtol=0)
    means = torch.tensor([w / (1 + math.exp(t)) for w, t in zip(RELEVANT, want, strict=True)])
    torch.testing.assert_close(mean[:4], means, atol=5e-3, rtol=0)
    assert min(best_log_alpha(w) for w in IRRELEVANT) > 8
    assert bool((log_alpha[4:] > 3).all())
