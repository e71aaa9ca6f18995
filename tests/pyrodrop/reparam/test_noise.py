"""How noise is shared over a minibatch, and its distribution: against weight draws, `nn.Dropout` and Kingma's formulas."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor

from pyrodrop import guides, models
from pyrodrop.distributions import BernoulliMixture, CorrelatedNormal, LowRankNormal, MultiplicativeNormal
from pyrodrop.reparam import STRATEGIES, LazyWeight, LocalReparam, reparameterize
from pyrodrop.reparam.lazy import LazyDistribution
from pyrodrop.training.elbo import elbo_terms
from tests.small import normal

pytestmark = pytest.mark.usefixtures("float64")
Linear = tuple[models.NetworkModel, guides.MeanField]
X = normal(6, 3, seed=0, dtype=torch.float64)
Y = normal(6, 1, seed=1, dtype=torch.float64)


def wrap(model: Any, guide: Any, strategy: Any) -> tuple[Any, Any]:
    return (model, guide) if strategy is None else reparameterize(model, guide, strategy)


def outputs(name: str, guide: Any, model: Any, x: Tensor, draws: int) -> Tensor:
    """The network's outputs of many passes, ``[draws, N, out]``."""
    wrapped = wrap(model, guide, STRATEGIES[name])
    rows = []
    for _ in range(draws):
        trace = poutine.trace(wrapped[1]).get_trace(x)
        rows.append(poutine.replay(wrapped[0], trace=trace)(x).detach())
    return torch.stack(rows)


@pytest.mark.more
@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_rows_get_noise_of_their_own(name: str, linear: Linear) -> None:
    """Covariance of two examples' outputs: the variance under `shared`, none under `local` and `per_example`."""
    model, guide = linear
    f = outputs(name, guide, model, X[:1].expand(2, 3), 3000)[..., 0]
    covariance, variance = f.T.cov()[0, 1], f.var()
    se = variance / math.sqrt(3000)
    if name == "shared":
        assert torch.equal(f[:, 0], f[:, 1])
    else:
        assert abs(float(covariance)) < 4 * float(se)


@pytest.mark.slow
def test_variance_falls_as_one_over_the_minibatch_under_local(linear: Linear) -> None:
    """Slope of log Var[nll estimate] against log M is -1 +- .05 under local; shared keeps the covariance (Kingma, eq. 5)."""
    model, guide = linear
    row = X[:1].expand(64, 3), Y[:1].expand(64, 1)

    def variance(name: str, size: int) -> float:
        wrapped = wrap(model, guide, STRATEGIES[name])
        with torch.no_grad():
            values = [float(elbo_terms(*wrapped, row[0][:size], row[1][:size], num_data=64).nll) for _ in range(4000)]
        return float(torch.tensor(values).var())

    sizes = torch.tensor([1.0, 8.0, 64.0])
    local = torch.tensor([variance("local", int(s)) for s in sizes]).log()
    slope = float(torch.stack([sizes.log(), local]).cov()[0, 1] / sizes.log().var())
    assert slope == pytest.approx(-1, abs=0.05)
    assert variance("shared", 64) > 0.8 * variance("shared", 1)


def test_gradients_are_kingmas_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """dL/d sigma^2 = dL/db zeta a^2 / (2 sqrt(delta)) under local and dL/db eps a / (2 sigma) for weights, to 1e-10."""
    a, m = torch.randn(1, 4), torch.randn(2, 4)
    v = torch.rand(2, 4).requires_grad_()
    noise = {(1, 2): torch.randn(1, 2), (2, 4): torch.randn(2, 4)}
    monkeypatch.setattr(torch, "randn_like", lambda t, **_: noise[tuple(t.shape)])
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, **_: noise[tuple(shape)])
    distribution = dist.Normal(m, v.sqrt()).to_event(2)
    loss_gradient = torch.tensor([[0.7, -1.3]])

    b = F.linear(a, LazyWeight(LazyDistribution(distribution, LocalReparam(), "w")))
    (got,) = torch.autograd.grad((b * loss_gradient).sum(), v)
    delta = (a**2 @ v.detach().T).T
    want = loss_gradient.T * noise[1, 2].T * a**2 / (2 * delta.sqrt())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)

    again = dist.Normal(m, v.sqrt()).to_event(2)
    (got,) = torch.autograd.grad((F.linear(a, again.rsample()) * loss_gradient).sum(), v)
    want = loss_gradient.T * noise[2, 4] * a / (2 * v.detach().sqrt())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


POSTERIORS: dict[str, Any] = {
    "normal": lambda m: dist.Normal(m, 0.5).to_event(m.dim()),
    "type A": lambda m: CorrelatedNormal(m, -0.5),
    "type B": lambda m: MultiplicativeNormal(m, -0.5),
    "Bernoulli": lambda m: BernoulliMixture(m, 0.3),
    "Bernoulli, theta": lambda m: BernoulliMixture(m, 0.3, 0.2),
    "DropConnect": lambda m: BernoulliMixture(m, 0.3, 0.1, per="weight"),
    "low rank": lambda m: LowRankNormal(m, 0.2 * torch.ones(m.numel(), 1), torch.full((m.numel(),), 0.1)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", ["local", "per_example"])
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_marginal_moments_are_those_of_weight_draws(kind: str, posterior: str, strategy: str) -> None:
    """Mean of every output within 4.5 standard errors and its variance within 3 %, 1e5 examples; convolutions too."""
    torch.manual_seed(11)
    draws = 100_000
    if kind == "linear":
        m, x = torch.randn(2, 3), torch.randn(3)
        apply: Any = F.linear
    else:
        m, x = torch.randn(2, 3, 2), torch.randn(3, 4)
        apply = F.conv1d
    q = POSTERIORS[posterior](m)
    batch = x.expand(draws, *x.shape)
    got = apply(batch, LazyWeight(LazyDistribution(q, STRATEGIES[strategy], "w"))).detach()
    weights = q.expand((draws,)).sample()
    want = torch.vmap(lambda xi, w: apply(xi[None], w)[0])(batch, weights)
    se = ((got.var(0) + want.var(0)) / draws).sqrt()
    assert float(((got.mean(0) - want.mean(0)) / se).abs().max()) < 4.5
    torch.testing.assert_close(got.var(0), want.var(0), rtol=0.03, atol=0)


def test_local_convolutions_drop_the_correlation_between_positions() -> None:
    """One weight's noise moves all positions of an image together; `local` keeps only each position's distribution."""
    m, x, draws = torch.randn(1, 1, 2), torch.ones(1, 6), 20_000
    q = dist.Normal(m, 1.0).to_event(3)
    local = F.conv1d(x.expand(draws, 1, 6), LazyWeight(LazyDistribution(q, LocalReparam(), "w")))[:, 0]
    weights = torch.vmap(lambda w: F.conv1d(x[None], w)[0, 0])(q.expand((draws,)).sample())
    assert float(weights.T.corrcoef()[0, 4]) > 0.99
    assert abs(float(local.T.corrcoef()[0, 4])) < 0.05
