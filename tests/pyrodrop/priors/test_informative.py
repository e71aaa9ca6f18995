"""Yesterday's posterior as today's prior: against linear regression in closed form, and dense Gaussians of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.distributions import LowRankNormal
from pyrodrop.divergences import EXACT, convention, divergence

PRECISION = 4.0
Rows = tuple[Tensor, Tensor]


def linear(inputs: int, prior: Any = None) -> models.NetworkModel:
    torch.manual_seed(1)
    net = torch.nn.Linear(inputs, 1, bias=False)
    return models.from_module(net, prior or priors.Gaussian(1.0), likelihoods.Gaussian(PRECISION))


def in_closed_form(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the weights of linear regression under N(0, I)."""
    covariance = torch.linalg.inv(torch.eye(x.shape[1], dtype=torch.float64) + PRECISION * x.double().T @ x.double())
    return covariance @ (PRECISION * x.double().T @ y[:, 0].double()), covariance


def trained(model: Any, guide: Any, data: Any) -> pyrodrop.Fit:
    settings: dict[str, Any] = {"lr": 0.005, "lr_schedule": schedules.cosine(3000), "estimator": "local"}
    return pyrodrop.fit(model, guide, data, steps=3000, seed=0, progress=False, **settings)


def two_days(inputs: int, orthogonal: bool) -> tuple[Rows, Rows]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(60, inputs, generator=generator) @ torch.randn(inputs, inputs, generator=generator)
    days = [torch.linalg.qr(day)[0] * 6 if orthogonal else day for day in x.chunk(2)]
    noise = torch.randn(60, 1, generator=generator) / PRECISION**0.5
    ys = (torch.cat(days) @ torch.linspace(-1, 2, inputs)[:, None] + noise).chunk(2)
    return (days[0], ys[0]), (days[1], ys[1])


def test_two_days_in_turn_are_one_joint_fit() -> None:
    """Columns of x are orthogonal, so that the exact posterior has independent weights."""
    first, second = two_days(3, orthogonal=True)
    model = linear(3)
    one = trained(model, guides.MeanField(model, 0.1), first)
    two = trained(one.model.with_priors(priors.from_posterior(one)), one.guide, second)
    mean, covariance = in_closed_form(*(torch.cat(parts) for parts in zip(first, second, strict=True)))
    q = two.guide.posterior("weight")
    assert float(((q.mean[0] - mean) / mean.abs().max()).abs().max()) < 0.01
    assert torch.allclose(q.variance.sqrt()[0].double(), covariance.diagonal().sqrt(), rtol=0.03)
    alone, _ = in_closed_form(*second)  # the check can fail: the second day alone is elsewhere
    assert float(((alone - mean) / mean.abs().max()).abs().max()) > 0.02
    assert str(two.elbo(50).convention) == "exact"


def test_posterior_of_all_days_is_that_of_the_last_day_under_the_prior_of_the_others() -> None:
    """Of correlated weights: the log densities of both differ by the same constant at any weights."""
    first, second = two_days(3, orthogonal=False)
    mean, covariance = in_closed_form(*first)
    factor = torch.linalg.cholesky(covariance)
    monday = priors.Informative(mean[None], 1e-6, factor=factor)
    model = linear(3).double().with_priors({"weight": monday})
    draws = torch.randn(5, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def log_density(weight: Tensor) -> Tensor:
        trace = poutine.trace(poutine.condition(model, {"weight": weight})).get_trace(second[0], second[1].double())
        return trace.log_prob_sum()

    joint_mean, joint = in_closed_form(*(torch.cat(parts) for parts in zip(first, second, strict=True)))
    exact = MultivariateNormal(joint_mean, joint).log_prob(draws[:, 0])
    ours = torch.stack([log_density(weight) for weight in draws])
    assert float((ours - exact).std()) < 1e-4 * float(exact.std())


def dense(q: LowRankNormal) -> MultivariateNormal:
    return MultivariateNormal(q.loc.flatten(), q.factor @ q.factor.T + q.diagonal.diag())


def test_divergence_from_a_low_rank_prior_is_that_of_dense_gaussians() -> None:
    torch.manual_seed(0)
    loc, scale, factor = torch.randn(2, 3), torch.rand(2, 3) + 0.1, torch.randn(6, 2)
    p = priors.Informative(loc, scale, factor=factor).expand(2, 3)
    exact = MultivariateNormal(loc.flatten(), factor @ factor.T + (scale.flatten() ** 2).diag())
    low_rank = LowRankNormal(torch.randn(2, 3), torch.randn(6, 3), torch.rand(6) + 0.1)
    normal = Normal(torch.randn(2, 3), torch.rand(2, 3) + 0.1)
    diagonal = MultivariateNormal(normal.loc.flatten(), normal.variance.flatten().diag())

    def unused() -> Tensor:
        raise AssertionError("a Monte Carlo estimate")

    for q, as_dense in ((low_rank, dense(low_rank)), (torch.distributions.Independent(normal, 2), diagonal)):
        assert torch.allclose(divergence(q, p, unused), kl_divergence(as_dense, exact), rtol=1e-4)
        assert convention(q, p) == EXACT
    value = torch.randn(2, 3)
    assert torch.allclose(p.log_prob(value), exact.log_prob(value.flatten()), rtol=1e-4)


def test_prior_has_the_moments_of_the_posterior() -> None:
    data = two_days(3, orthogonal=False)[0]
    for make in (
        guides.MeanField,
        guides.VariationalDropout,
        lambda m: guides.GaussianDropout(m, kind="B", drop_rate=0.2),
        lambda m: guides.BernoulliDropout(m, 0.2, theta=0.1),
    ):
        model = linear(3)
        run = pyrodrop.fit(model, make(model), data, steps=20, progress=False)
        p = priors.from_posterior(run)["weight"].for_site("weight", torch.zeros(1, 3))
        draws = run.guide.draw(20_000)["weight"].double()
        assert torch.allclose(p.mean.double(), draws.mean(0), atol=5 * float(draws.std(0).max()) / 20_000**0.5)
        assert torch.allclose(p.variance.sqrt().double(), draws.std(0), rtol=0.05)


def test_model_starts_at_the_means_and_keeps_its_original() -> None:
    model = linear(3)
    before = model.weight_sites()["weight"].clone()
    loc = torch.tensor([[1.0, 2.0, 3.0]])
    next_one = model.with_priors({"weight": priors.Informative(loc, 0.5)})
    loc += 100  # which the prior does not see
    assert next_one.weight_sites()["weight"].tolist() == [[1.0, 2.0, 3.0]]
    assert torch.equal(model.weight_sites()["weight"], before)
    assert not model.settled
    assert model.priors["weight"].describe() == "Gaussian(scale=1)"


def test_standardisation_of_other_data_is_refused() -> None:
    first, second = two_days(3, orthogonal=False)
    monday, other = (Dataset(*day).standardized() for day in (first, (second[0] * 3, second[1])))
    model = linear(3)
    run = pyrodrop.fit(model, guides.MeanField(model), monday, steps=10, progress=False)
    tuesday = run.model.with_priors(priors.from_posterior(run))
    with pytest.raises(ValueError, match="data must have the standardisation of those that the priors come from"):
        pyrodrop.fit(tuesday, run.guide, other, steps=1)
    kept = pyrodrop.fit(tuesday, run.guide, second, steps=1, progress=False)
    assert torch.equal(kept.model.inputs.loc, run.model.inputs.loc)


@pytest.mark.parametrize(
    "make",
    [
        guides.Point,
        lambda m: guides.BernoulliDropout(m, 0.1),
        lambda m: guides.GaussianDropout(m, kind="A", drop_rate=0.2),
        guides.ConcreteDropout,
    ],
)
def test_posterior_without_a_density_is_refused(make: Any) -> None:
    guide = make(linear(3))
    with pytest.raises(ValueError, match="the posterior of 'weight' must have a density"):
        priors.from_posterior(type("Run", (), {"guide": guide})())
