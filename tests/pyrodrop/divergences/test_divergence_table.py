"""The table of divergences: every registered pair against Monte Carlo or direct minimisation, every refusal by name."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.distributions import kl_divergence

from pyrodrop import priors
from pyrodrop.distributions import (
    BernoulliMixture,
    CorrelatedNormal,
    LowRankNormal,
    MultiplicativeNormal,
    PooledNormal,
    RelaxedBernoulliMixture,
)
from pyrodrop.divergences import NoDivergence, convention, divergence, log_uniform_kl, worst
from pyrodrop.guides.from_noise import Pushforward
from tests.small import Heavy

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")]
EULER = 0.5772156649015329


def posteriors() -> dict[str, Any]:
    torch.manual_seed(2)
    m = torch.randn(3, 4)
    return {
        "normal": dist.Normal(m, torch.rand(3, 4) + 0.2).to_event(2),
        "B": MultiplicativeNormal(m, torch.randn(3, 4)),
        "low rank": LowRankNormal(m, 0.5 * torch.randn(12, 2), 0.2 + torch.rand(12)),
        "mixture": BernoulliMixture(m, 0.3, 0.5),
        "mixture by weight": BernoulliMixture(m, 0.3, 0.5, per="weight"),
    }


WITH_SCALES = ("normal", "B", "low rank")  # have divergences from priors whose density is not bounded


def monte_carlo(q: Any, p: Any, draws: int = 200_000) -> tuple[float, float]:
    value = q.sample((draws,))
    ratio = q.log_prob(value) - p.log_prob(value)
    return float(ratio.mean()), float(ratio.std()) / math.sqrt(draws)


@pytest.mark.few(5)
@pytest.mark.parametrize("scale", [0.8, [0.3, 0.8, 1.5, 4.0]], ids=["one scale", "by input"])
@pytest.mark.parametrize("name", posteriors())
def test_divergence_from_a_gaussian(name: str, scale: float | list[float]) -> None:
    q, p = posteriors()[name], priors.Gaussian(scale).expand(3, 4)
    mean, se = monte_carlo(q, p)
    assert abs(float(kl_divergence(q, p)) - mean) < 4 * se
    assert convention(q, p).kind == "exact"


@pytest.mark.parametrize("name", WITH_SCALES)
def test_divergence_from_the_log_uniform(name: str) -> None:
    """E[ln q + ln |w|] but for a constant a weight that makes it zero at alpha -> infinity."""
    q, p = posteriors()[name], priors.LogUniform().expand(3, 4)
    mean, se = monte_carlo(q, p)
    constant = 12 * (-math.log(2 * math.pi * math.e) / 2 - (EULER + math.log(2)) / 2)
    assert abs(float(kl_divergence(q, p)) - (mean - constant)) < 4 * se
    assert convention(q, p).kind == "up_to_constant"


def test_type_a_counts_units_and_not_weights() -> None:
    log_alpha = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    p = priors.LogUniform()
    for rows in (1, 7):
        kl = kl_divergence(CorrelatedNormal(torch.randn(rows, 4), log_alpha), p.expand(rows, 4))
        torch.testing.assert_close(kl, log_uniform_kl(log_alpha).sum())
    shared = kl_divergence(CorrelatedNormal(torch.randn(7, 4), 0.0), p.expand(7, 4))
    torch.testing.assert_close(shared, 4 * log_uniform_kl(torch.tensor(0.0)))


def test_ard_by_weight_is_half_log1p_of_one_over_alpha() -> None:
    """To 1e-12, without a gradient to the means where alpha is fixed."""
    m, log_alpha = torch.randn(3, 4, requires_grad=True), torch.linspace(-9, 9, 12).reshape(3, 4)
    p = priors.ARD().expand(3, 4)
    want = 0.5 * torch.log1p(torch.exp(-log_alpha)).sum()
    kl = kl_divergence(MultiplicativeNormal(m, log_alpha), p)
    assert abs(float(kl.detach() - want)) < 1e-12
    assert not kl.requires_grad
    normal = dist.Normal(m.detach(), torch.exp(log_alpha / 2) * m.detach().abs()).to_event(2)
    assert abs(float(kl_divergence(normal, p) - want)) < 1e-12


@pytest.mark.parametrize("group", ["weight", "input", "layer"])
@pytest.mark.parametrize("name", WITH_SCALES)
def test_ard_is_the_least_over_its_variances(group: Any, name: str) -> None:
    """Against numerical minimisation of the Gaussian prior's divergence over the variance of each group."""
    q = posteriors()[name]
    axes = {"weight": [], "input": [0], "layer": [0, 1]}[group]
    pool = PooledNormal((3, 4), group)
    best = pool.pool(q.mean**2 + q.variance).expand(3, 4)
    reached = kl_divergence(q, dist.Normal(torch.zeros(3, 4), best.sqrt()).to_event(2))
    torch.testing.assert_close(kl_divergence(q, pool), reached)

    def with_scaled(log_factor: float, cell: tuple[int, int]) -> float:
        variance = best.clone()
        index = tuple(slice(None) if axis in axes else cell[axis] for axis in (0, 1))
        variance[index] *= math.exp(log_factor)
        return float(kl_divergence(q, dist.Normal(torch.zeros(3, 4), variance.sqrt()).to_event(2)))

    for cell in ((0, 0), (2, 3)):
        minimum = minimize_scalar(lambda z, cell=cell: with_scaled(z, cell), bounds=(-3, 3), method="bounded")
        assert abs(minimum.x) < 1e-3


def test_priors_without_a_closed_form_are_monte_carlo() -> None:
    q, p = posteriors()["B"], Heavy(0.7).expand(3, 4)
    value = q.sample()
    torch.testing.assert_close(divergence(q, p, value), q.log_prob(value) - p.log_prob(value))
    assert convention(q, p).kind == "exact"


def test_a_users_regulariser_stands_in_and_says_so() -> None:
    m = torch.randn(3, 4)
    noise = lambda loc: dist.Normal(0.0, 1.0).expand(loc.shape).to_event(2)  # noqa: E731
    q = Pushforward(m, lambda loc, e: loc + e, noise, regularizer=lambda loc: loc.abs().sum())
    p = priors.Gaussian().expand(3, 4)
    torch.testing.assert_close(divergence(q, p, q.sample()), m.abs().sum())
    assert "user's regulariser" in convention(q, p).detail


ATOMS = BernoulliMixture(torch.ones(2, 2), 0.5)
RELAXED = RelaxedBernoulliMixture(torch.ones(2, 2), torch.tensor(0.0))
LINE = CorrelatedNormal(torch.ones(2, 2), 0.0)
NORMAL = dist.Normal(torch.ones(2, 2), 1.0).to_event(2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("q", "prior", "message"),
    [
        (ATOMS, priors.LogUniform, "BernoulliMixture from LogUniform.*exactly zero.*use a proper prior"),
        (RELAXED, priors.LogUniform, "RelaxedBernoulliMixture from LogUniform.*exactly zero"),
        (ATOMS, priors.ARD, "BernoulliMixture from PooledNormal.*fixed scale"),
        (LINE, priors.Gaussian, "CorrelatedNormal from Normal.*no density over weights; use priors.LogUniform"),
        (LINE, priors.ARD, "CorrelatedNormal from PooledNormal.*no density"),
        (LINE, Heavy, "CorrelatedNormal from StudentT.*no density"),
    ],
)
def test_pairs_without_a_divergence_are_named(q: Any, prior: Any, message: str) -> None:
    with pytest.raises(NoDivergence, match=message):
        divergence(q, prior().expand(2, 2), q.sample())


def test_relaxed_masks_say_so() -> None:
    relaxed = convention(RELAXED, priors.Gaussian().expand(2, 2))
    assert relaxed.kind == "up_to_constant"
    assert "relaxation" in relaxed.detail
    torch.testing.assert_close(
        kl_divergence(RELAXED, priors.Gaussian().expand(2, 2)), kl_divergence(ATOMS, priors.Gaussian().expand(2, 2))
    )
    assert worst([relaxed, convention(NORMAL, priors.Gaussian().expand(2, 2))]) == relaxed
