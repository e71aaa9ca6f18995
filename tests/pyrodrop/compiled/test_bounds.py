"""Bounds of importance-weighted draws, where there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro.infer import RenyiELBO
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

TAU, RATE = 4.0, 0.3
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True).sin()


def model() -> models.NetworkModel:
    net = nn.Sequential(nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 1, bias=False))
    return models.from_module(net, priors.Gaussian(0.8), likelihoods.Gaussian(TAU))


@pytest.mark.parametrize("settings", [{"batch_size": 10}, {"estimator": "local"}, {"estimator": "per_example"}])
def test_what_is_no_bound_is_refused(settings: Any) -> None:
    own = model()
    with pytest.raises(ValueError, match="RenyiELBO weighs draws by the densities"):
        pyrodrop.fit(
            own,
            guides.MeanField(own),
            (X, Y),
            steps=1,
            objective=RenyiELBO(num_particles=2),
            progress=False,
            **settings,
        )


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
