"""Randomised ensembles: of linear models, estimates with anchors and noise of y are posterior draws.

The model is y = X w + N(0, 1 / tau), w ~ N(0, s^2), whose posterior is N(m, S) with S = (tau X'X + I / s^2)^-1 and
m = tau S X'y. Estimates and posterior are solved here by NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

S, TAU, COUNT, D, N = 0.7, 2.0, 120, 3, 4  # so few rows that the posterior is the prior in good part


class Anchored(priors.Gaussian):
    """N(a, scale^2) around the initial weights a ~ N(0, scale^2): Pearce et al. (2020), arXiv:1810.05546."""

    def __init__(self, scale: float) -> None:
        super().__init__(scale, drawn=True)

    def for_site(self, name: str, like: Tensor, units: Any = None) -> Any:
        return dist.Normal(like, self.numbers()["scale"].to(like).expand_as(like)).to_event(like.dim())


X = torch.randn(N, D, generator=torch.Generator().manual_seed(3))
Y = X @ torch.tensor([[1.0], [-0.5], [0.2]]) + 0.5 * torch.randn(N, 1, generator=torch.Generator().manual_seed(4))
COVARIANCE = np.linalg.inv(TAU * (X.T @ X).double().numpy() + np.eye(D) / S**2)
MEAN = TAU * COVARIANCE @ (X.T @ Y).double().numpy()[:, 0]
TRAINED: dict[str, Any] = {
    "count": COUNT, "steps": 300, "lr": 0.1, "lr_schedule": pyrodrop.schedules.cosine(300), "starts": "new",
    "engine": "traced", "device": "cpu", "progress": False,
}  # fmt: skip


def solved(y: Tensor, anchor: Tensor) -> np.ndarray:
    """The maximum a posteriori estimate under the prior N(anchor, s^2)."""
    return COVARIANCE @ (TAU * (X.T @ y).double().numpy()[:, 0] + anchor.double().numpy() / S**2)


def check_draws(draws: np.ndarray) -> None:
    """Mean and covariance within four standard errors of the posterior's."""
    error = np.sqrt(np.diag(COVARIANCE) / len(draws))
    assert (np.abs(draws.mean(0) - MEAN) < 4 * error).all()
    error = np.sqrt((COVARIANCE**2 + np.outer(np.diag(COVARIANCE), np.diag(COVARIANCE))) / len(draws))
    assert (np.abs(np.cov(draws.T) - COVARIANCE) < 4 * error).all()


def noisy(count: int) -> list[Any]:
    g = torch.Generator().manual_seed(10)
    return [(X, Y + TAU**-0.5 * torch.randn(Y.shape, generator=g)) for _ in range(count)]


@pytest.fixture(scope="module")
def anchored() -> pyrodrop.Replicates:
    model = models.from_module(nn.Linear(D, 1, bias=False), Anchored(S), likelihoods.Gaussian(TAU))
    sets = noisy(COUNT)
    return pyrodrop.fit_replicates(model, guides.Point(model), sets, **TRAINED)


def test_anchored_estimates_are_draws_from_the_posterior(anchored: pyrodrop.Replicates) -> None:
    draws = np.stack([fit.guide.mean()["weight"][0].double().numpy() for fit in anchored])
    for fit, draw in list(zip(anchored, draws, strict=True))[:20]:
        np.testing.assert_allclose(draw, solved(fit.data.y, fit.model.weight_sites()["weight"][0]), atol=5e-3)
    check_draws(draws)
    assert len(torch.stack([fit.model.weight_sites()["weight"] for fit in anchored]).unique(dim=0)) == COUNT
