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
    check_covariance(draws, COVARIANCE)


def check_covariance(draws: np.ndarray, want: np.ndarray) -> None:
    """Every entry within four standard errors."""
    error = np.sqrt((want**2 + np.outer(np.diag(want), np.diag(want))) / len(draws))
    assert (np.abs(np.cov(draws.T) - want) < 4 * error).all()


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


def test_anchors_and_noise_of_the_same_seed_are_independent(anchored: pyrodrop.Replicates) -> None:
    noise = torch.stack([(fit.data.y - Y)[:, 0] for fit in anchored])
    anchors = torch.stack([fit.model.weight_sites()["weight"][0] for fit in anchored])
    correlation = torch.corrcoef(torch.cat([noise, anchors], 1).T)
    assert float((correlation - torch.eye(N + D)).abs().max()) < 5 / COUNT**0.5
    assert float(anchors.std()) == pytest.approx(S, rel=4 / (2 * COUNT * D) ** 0.5)
    assert float(noise.std()) == pytest.approx(TAU**-0.5, rel=4 / (2 * COUNT * N) ** 0.5)


# Models


@pytest.mark.parametrize("guide", [guides.MeanField, lambda m: guides.BernoulliDropout(m, 0.3, theta=0.0)])
def test_divergence_from_anchors(guide: Any) -> None:
    """E[(w - a)^2] / (2 s^2) + ln(s sqrt(2 pi)) - entropy, summed over weights by NumPy."""
    model = models.from_module(nn.Linear(3, 2, bias=False), Anchored(S), likelihoods.Gaussian(TAU))
    own = guide(model)
    anchor = model.weight_sites()["weight"].double().numpy()
    with torch.no_grad():
        own.loc["weight"].add_(0.5)
    q = own.posterior("weight")
    loc = q.loc.detach().double().numpy() if hasattr(q, "loc") else q.mean.detach().double().numpy()
    if isinstance(own, guides.MeanField):
        loc, sd = q.mean.detach().double().numpy(), q.variance.detach().double().numpy() ** 0.5
        want = (((loc - anchor) ** 2 + sd**2) / (2 * S**2) + np.log(S / sd) - 0.5).sum()
    else:  # masks of three input units, whose entropy counts once per unit; the constant of theta -> 0 is left out
        kept, dropped = 0.7 * (loc - anchor) ** 2, 0.3 * anchor**2
        entropy = -3 * (0.3 * np.log(0.3) + 0.7 * np.log(0.7))
        want = ((kept + dropped) / (2 * S**2) + np.log(2 * np.pi * S**2) / 2).sum() - entropy
    y = torch.zeros(4, 2)
    terms = pyrodrop.training.elbo.elbo_terms(model, own, torch.ones(4, 3), y)
    assert float(terms.kl.detach()) == pytest.approx(want, rel=1e-5)
