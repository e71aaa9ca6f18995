"""The distributions of Gaussian dropout and its relatives: moments, densities, entropies."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from pyrodrop.distributions import (
    BernoulliMixture,
    CorrelatedNormal,
    CutNormal,
    LogUniform,
    LowRankNormal,
    MultiplicativeNormal,
    PooledNormal,
    RelaxedBernoulliMixture,
    WeightDistribution,
)
from pyrodrop.divergences import convention, divergence
from pyrodrop.guides.from_noise import Pushforward

pytestmark = pytest.mark.usefixtures("float64")
DRAWS = 100_000


def distributions() -> dict[str, WeightDistribution]:
    torch.manual_seed(1)
    m, alpha = torch.randn(3, 4), torch.tensor([0.1, 0.5, 1.0, 2.0])
    return {
        "B": MultiplicativeNormal(m, alpha.log()),
        "cut": CutNormal(m, alpha.log(), -0.2),
        "A": CorrelatedNormal(m, alpha.log()),
        "low rank": LowRankNormal(m, 0.3 * torch.randn(12, 2), 0.1 + torch.rand(12)),
        "DropConnect": BernoulliMixture(m, torch.rand(3, 4) * 0.9, 0.1, per="weight"),
    }


@pytest.mark.parametrize("name", distributions())
def test_moments_are_those_of_draws(name: str) -> None:
    q = distributions()[name]
    draws = q.expand((DRAWS,)).sample()
    se = (q.variance / DRAWS).sqrt()
    assert float(((draws.mean(0) - q.mean) / se).abs().max()) < 4.5
    torch.testing.assert_close(draws.var(0), q.variance, rtol=0.04, atol=0)


@pytest.mark.parametrize("kind", ["A", "B"])
def test_activations_have_kingmas_moments(kind: str) -> None:
    """gamma = a theta, delta = alpha sum a^2 theta^2; covariance of two outputs alpha sum a^2 theta_j theta_l, A only.

    Against 1e5 draws, 4 s.e. and against the closed form (Kingma et al. 2015, eq. 8-11).
    """
    theta, a, alpha = torch.randn(2, 6), torch.randn(6), 0.7
    q = (CorrelatedNormal if kind == "A" else MultiplicativeNormal)(theta, math.log(alpha))
    b = q.expand((DRAWS,)).sample() @ a
    gamma, delta = theta @ a, alpha * (theta**2) @ (a**2)
    between = alpha * float((a**2 * theta[0] * theta[1]).sum()) if kind == "A" else 0.0
    assert float(((b.mean(0) - gamma) / (delta / DRAWS).sqrt()).abs().max()) < 4
    product = (b[:, 0] - gamma[0]) * (b[:, 1] - gamma[1])
    assert abs(float(product.mean()) - between) < 4 * float(product.std()) / math.sqrt(DRAWS)
    square = (b - gamma) ** 2
    assert float(((square.mean(0) - delta) / (square.std(0) / math.sqrt(DRAWS))).abs().max()) < 4


def test_type_b_density_and_entropy() -> None:
    m, log_alpha = torch.randn(3, 4), torch.randn(3, 4)
    q = MultiplicativeNormal(m, log_alpha)
    plain = Normal(m, torch.exp(log_alpha / 2) * m.abs())
    value = q.sample((5,))
    torch.testing.assert_close(q.log_prob(value), plain.log_prob(value).sum((-1, -2)))
    torch.testing.assert_close(q.entropy(), plain.entropy().sum())


def test_the_density_of_a_cut_weight_is_centred_at_zero() -> None:
    m, log_alpha = torch.randn(3, 4), torch.linspace(-2, 2, 12).reshape(3, 4)
    q = CutNormal(m, log_alpha, 0.5)
    plain = Normal(m * (log_alpha < 0.5), torch.exp(log_alpha / 2) * m.abs())
    value = q.sample((5,))
    torch.testing.assert_close(q.log_prob(value), plain.log_prob(value).sum((-1, -2)))


def test_low_rank_density_and_entropy() -> None:
    m, f, d = torch.randn(2, 3), torch.randn(6, 2), torch.rand(6) + 0.1
    q, plain = LowRankNormal(m, f, d), MultivariateNormal(m.flatten(), f @ f.T + d.diag())
    value = q.sample((5,))
    torch.testing.assert_close(q.log_prob(value), plain.log_prob(value.flatten(1)))
    torch.testing.assert_close(q.entropy(), plain.entropy())


def test_relaxed_masks_are_bernoulli_at_low_temperature() -> None:
    rate = torch.tensor([0.1, 0.5, 0.9])
    q = RelaxedBernoulliMixture(torch.randn(2, 3), torch.logit(rate), temperature=1e-3)
    mask = q.sample((DRAWS,)).mask  # type: ignore[attr-defined]
    assert float((mask * (1 - mask)).mean()) < 1e-3
    assert float(((mask.mean(0) - (1 - rate)) / (rate * (1 - rate) / DRAWS).sqrt()).abs().max()) < 4


def test_a_rate_gets_its_gradient_through_the_relaxed_mask() -> None:
    """d E[sum z] / d logit = -r (1 - r) for a Bernoulli mask; the relaxation at .1 is close."""
    logit = torch.tensor(0.3, requires_grad=True)
    q = RelaxedBernoulliMixture(torch.ones(1, 1), logit, temperature=0.1)
    q.rsample((DRAWS,)).mean().backward()
    r = torch.sigmoid(logit.detach())
    torch.testing.assert_close(logit.grad, -r * (1 - r), rtol=0.05, atol=0)


def test_log_uniform_density() -> None:
    """Scale invariant: p(c w) = p(w) / c."""
    w = torch.tensor([0.2, -3.0])
    torch.testing.assert_close(LogUniform((2,)).log_prob(5 * w), LogUniform((2,)).log_prob(w) - math.log(5))
    with pytest.raises(ValueError, match="improper and cannot be sampled"):
        LogUniform((2,)).sample()


def test_pushforward_is_g_of_noise() -> None:
    m = torch.randn(3, 4)
    q = Pushforward(
        m, lambda loc, e: loc * e, lambda loc: dist.Normal(1.0, 0.5).expand(loc.shape).to_event(2), torch.sum
    )
    draws = q.expand((DRAWS,)).sample()
    torch.testing.assert_close(q.mean, m)
    torch.testing.assert_close(draws.std(0), 0.5 * m.abs(), rtol=0.02, atol=0)
    with pytest.raises(ValueError, match=r"must have the weight's shape \(3, 4\); got"):
        Pushforward(m, lambda loc, e: e[..., :2], q.noise, torch.sum).sample()


def test_a_cut_weight_keeps_its_noise_and_has_no_gradient_but_the_divergences() -> None:
    m = torch.tensor([[1.0, 0.1]], requires_grad=True)
    log_variance = torch.tensor([[-2.0, -1.0]])
    q = CutNormal(m, log_variance - m.square().log(), 3.0)
    draws = q.expand((DRAWS,)).rsample()
    torch.testing.assert_close(draws.std(0), torch.exp(log_variance / 2), rtol=0.02, atol=0)
    torch.testing.assert_close(draws.mean(0), torch.tensor([[1.0, 0.0]]), atol=0.01, rtol=0)
    (gradient,) = torch.autograd.grad(q.mean.sum(), m)
    assert gradient.tolist() == [[1.0, 0.0]]
    (gradient,) = torch.autograd.grad(q.variance.sum(), m)
    torch.testing.assert_close(gradient, torch.zeros(1, 2), atol=1e-6, rtol=0)


def test_the_divergence_of_a_cut_distribution_is_bounded_from_above() -> None:
    """KL of N(0, v) is 0 from the log-uniform prior and from the best Gaussian of its own; what is counted says so."""
    m, log_alpha = torch.ones(1, 2), torch.tensor([[1.0, 3.0]])
    cut, whole = CutNormal(m, log_alpha, 3.0), MultiplicativeNormal(m, log_alpha)
    ard = PooledNormal((1, 2), "weight")
    for prior in (ard, LogUniform((1, 2)).to_event(2)):
        assert float(divergence(cut, prior, m)) == pytest.approx(float(divergence(whole, prior, m)))
        kept = divergence(MultiplicativeNormal(m[:, :1], log_alpha[:, :1]), _like(prior), m[:, :1])
        over = float(divergence(cut, prior, m) - kept)
        assert over == pytest.approx(convention(cut, prior).error, rel=1e-6)  # the most, at the threshold itself
    assert str(convention(cut, ard)).startswith("approximate")
    assert convention(cut, PooledNormal((1, 2), "layer")).kind == "exact"


def _like(prior: dist.Distribution) -> dist.Distribution:
    return PooledNormal((1, 1), "weight") if isinstance(prior, PooledNormal) else LogUniform((1, 1)).to_event(2)
