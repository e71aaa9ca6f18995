"""Bounds of importance-weighted draws against the exact evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import RenyiELBO
from scipy.stats import multivariate_normal
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

TAU, RATE = 4.0, 0.3
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True).sin()


def model() -> models.NetworkModel:
    net = nn.Sequential(nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 1, bias=False))
    return models.from_module(net, priors.Gaussian(0.8), likelihoods.Gaussian(TAU))


@pytest.fixture(scope="module")
def regression() -> tuple[Any, Any, torch.Tensor, torch.Tensor, float]:
    """A linear regression with a factorised posterior, and its evidence by SciPy."""
    shared, columns, w, noise = torch.randn(215, generator=torch.Generator().manual_seed(0)).split([30, 150, 5, 30])
    x = (columns.view(30, 5) + shared[:, None]) / 2**0.5  # correlated columns
    y = (x @ w + noise / TAU**0.5)[:, None]
    net = nn.Linear(5, 1, bias=False)
    own = models.from_module(net, priors.Gaussian(1.0), likelihoods.Gaussian(TAU))
    fit = pyrodrop.fit(own, guides.MeanField(own), (x, y), steps=600, lr=0.03, engine="traced", progress=False)
    covariance = (x.double() @ x.double().T).numpy() + np.eye(len(x)) / TAU
    evidence = float(multivariate_normal(np.zeros(len(x)), covariance).logpdf(y.double().numpy()[:, 0]))
    return fit.model, fit.guide, x, y, evidence


def test_bounds_are_below_the_evidence_and_rise_with_the_number_of_draws(regression: Any) -> None:
    own, guide, x, y, evidence = regression
    means = []
    for k, count in ((1, 400), (10, 60), (100, 15)):
        torch.manual_seed(k)
        many: dict[str, Any] = {"num_particles": k, "vectorize_particles": True, "max_plate_nesting": 1}
        pyro_loss = RenyiELBO(alpha=0, **many) if k > 1 else pyro.infer.Trace_ELBO()
        values = np.array([-pyro_loss.loss(own, guide, x, y) for _ in range(count)])
        means.append((values.mean(), values.std() / count**0.5))
    (first, e1), (second, e2), (third, e3) = means
    assert first + 3 * e1 < second - 3 * e2
    assert second - 2 * e2 < third + 2 * e3
    assert third < evidence + 3 * e3


@pytest.mark.parametrize("settings", [{"batch_size": 10}, {"estimator": "local"}, {"estimator": "per_example"}])
def test_what_is_no_bound_is_refused(regression: Any, settings: Any) -> None:
    own, guide, x, y, _ = regression
    with pytest.raises(ValueError, match="RenyiELBO weighs draws by the densities"):
        pyrodrop.fit(own, guide, (x, y), steps=1, objective=RenyiELBO(num_particles=2), progress=False, **settings)


@pytest.mark.parametrize(
    "guide",
    [guides.BernoulliDropout, guides.ConcreteDropout, guides.Point, lambda m: guides.Ensemble(m, guides.Point, 2)],
)
def test_a_posterior_without_a_density_has_no_such_bound(guide: Any) -> None:
    own, loss = model(), RenyiELBO(num_particles=2)
    with pytest.raises(ValueError, match="and theta above 0; got"):
        pyrodrop.fit(own, guide(own), (X, Y), steps=1, objective=loss, progress=False)
    proper = guides.BernoulliDropout(own, RATE, theta=0.05)
    fit = pyrodrop.fit(own, proper, (X, Y), steps=3, objective=loss, engine="pyro", progress=False)
    assert bool(fit.losses.isfinite().all())
