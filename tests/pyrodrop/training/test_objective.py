"""`Fit.elbo` is a bound whatever was trained."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.priors import ImproperPrior
from pyrodrop.training.elbo import bound_terms, elbo_terms

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(3))
Y = X @ torch.tensor([[1.0], [-0.5], [0.2]])


def line(prior: priors.Prior | None = None) -> models.NetworkModel:
    torch.manual_seed(0)
    return models.from_module(
        nn.Linear(3, 1, bias=False), prior=prior or priors.Gaussian(), likelihood=likelihoods.Gaussian(2.0)
    )


def evidence() -> float:
    """ln p(y), in closed form."""
    covariance = X @ X.T + torch.eye(12) / 2.0
    return float(dist.MultivariateNormal(torch.zeros(12), covariance).log_prob(Y[:, 0]))


@pytest.mark.more
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in an ensemble"])
@pytest.mark.parametrize(
    "settings", [{}, {"kl_weight": 0.1}, {"kl_weight": schedules.linear(1000)}],
    ids=["as it is", "kl_weight", "scheduled"],
)  # fmt: skip
def test_an_elbo_never_exceeds_the_evidence(wrapped: bool, settings: dict[str, Any]) -> None:
    """With a divergence counted at a tenth in training."""
    model = line()
    make = lambda m: guides.VariationalDropout(m, "B", "weight", kl_scale=0.1)  # noqa: E731
    guide = guides.Ensemble(model, make, 2) if wrapped else make(model)
    fit = pyrodrop.fit(model, guide, (X, Y), steps=100, lr=0.05, **settings)
    elbo = fit.elbo(400)
    assert elbo.value < evidence() + 4 * elbo.se
    assert str(elbo.convention) == "exact"


@pytest.mark.filterwarnings(f"ignore::{ImproperPrior.__module__}.{ImproperPrior.__qualname__}")
def test_a2_has_the_divergence_of_a() -> None:
    found = []
    for scale in (1.0, 1 / 3):
        model = line(priors.LogUniform())
        guide = guides.VariationalDropout(model, "A", kl_scale=scale)
        fit = pyrodrop.Fit(model, guide, pyrodrop.data.Dataset(X, Y), torch.zeros(0, 3), {})
        found.append((fit.elbo(3), elbo_terms(fit.model, fit.guide, X, Y).kl))
    assert found[0][0] == found[1][0]
    assert found[1][1].item() == pytest.approx(found[0][1].item() / 3)


def test_a_part_of_the_rows_still_stands_for_all() -> None:
    """A plate's scale is no scale of the guide's own: latent variables of rows count as often as their rows, and so do
    weights of the rows of model and guide."""

    def model(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | float = 1.0) -> None:
        with pyro.plate("rows", 10, subsample_size=5, dim=-1), pyro.poutine.scale(scale=weights):
            z = pyro.sample("z", dist.Normal(torch.zeros(5), 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | float = 0.5) -> None:
        with pyro.plate("rows", 10, subsample_size=5, dim=-1), pyro.poutine.scale(scale=weights):
            pyro.sample("z", dist.Normal(torch.ones(5), 1.0))

    x, y = torch.zeros(5), torch.zeros(5)
    whole = 10 * 0.5  # KL(N(1, 1) || N(0, 1)) = 1/2
    assert float(bound_terms(model, guide, (x, y), {})[0].kl) == pytest.approx(whole)
    assert float(elbo_terms(model, guide, x, y).kl) == pytest.approx(whole / 2)
    for weights, kl in ((torch.arange(5.0) + 1, 2 * 15 * 0.5), (torch.full((5,), 3.0), whole)):
        assert float(bound_terms(model, guide, (x, y, weights), {})[0].kl) == pytest.approx(kl)
