"""Divergences, against Monte Carlo, quadrature and the formulas they generalise."""

import itertools
import math

import pyro.distributions as dist
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import kl_divergence

from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.divergences import (
    ATOMS,
    EXACT,
    POINT,
    Convention,
    convention,
    divergence,
    worst,
)
from pyrodrop.divergences.bernoulli import binary_entropy, lost_entropy
from pyrodrop.priors import Gaussian
from tests.small import Heavy

pytestmark = pytest.mark.usefixtures("float64")


def _log_ratio(q: BernoulliMixture, p: dist.TorchDistribution, draws: int) -> torch.Tensor:
    value = q.sample((draws,))
    return q.log_prob(value) - p.log_prob(value)


def test_the_penalty_of_a_large_weight_is_the_sum_of_its_squares_in_single_precision() -> None:
    """One million equal weights of which a row is 0, alone and stacked: to 1e-5, and the gradient is the weight's decay."""
    loc = torch.full((2, 1000, 1000), 0.37, dtype=torch.float32)
    loc[0, 3] = 0.0
    p = Gaussian(scale=0.8).expand(1000, 1000)
    for weights in (loc, loc[0]):
        moved = weights.clone().requires_grad_()
        one = BernoulliMixture(torch.zeros_like(loc[0]), 0.2)
        of_squares = kl_divergence(one.at(moved), p) - kl_divergence(one.at(torch.zeros_like(weights)), p)
        wanted = 0.8 / (2 * 0.8**2) * weights.double().square().sum((-2, -1))
        torch.testing.assert_close(of_squares.double(), wanted, rtol=1e-5, atol=0)
        of_squares.sum().backward()
        torch.testing.assert_close(moved.grad, 0.8 / 0.8**2 * weights, rtol=1e-5, atol=0)


@pytest.mark.parametrize("distance", [12.5, 20.0, 100.0, 1e4])
def test_mixture_divergence_is_gals_formula_where_components_are_apart(distance: float) -> None:
    """Gal & Ghahramani (2016), appendix section 4, to 1e-6 for d > 12."""
    k, theta, sigma, keep = 5, 0.1, 0.8, 0.7
    column = torch.randn(k, 1)
    m = column / column.norm() * distance * theta
    entropy = -(keep * math.log(keep) + (1 - keep) * math.log(1 - keep))
    bracket = theta**2 / sigma**2 - 1 - math.log(theta**2 / sigma**2)
    gal = keep * (distance * theta) ** 2 / (2 * sigma**2) + k / 2 * bracket - entropy
    ours = kl_divergence(BernoulliMixture(m, 1 - keep, theta), Gaussian(scale=sigma).expand(k, 1))
    assert float(ours) == pytest.approx(gal, abs=1e-6)


@pytest.mark.parametrize(("d", "h"), [(1, 0.582), (2, 0.356), (4, 0.060), (6, 0.0039), (8, 9e-5)])
def test_lost_entropy_of_a_fair_coin_has_its_known_values(d: float, h: float) -> None:
    ours = float(lost_entropy(torch.tensor(0.5), torch.tensor(float(d))))
    assert ours == pytest.approx(h, rel=0.04)


@pytest.mark.few(5)
@pytest.mark.parametrize("p", [0.5, 0.1, 0.9, 0.999])
@pytest.mark.parametrize("d", [1e-3, 0.1, 1.0, 3.0, 6.7, 8.6, 12.0, 30.0])
def test_lost_entropy_is_the_integral_that_defines_it(p: float, d: float) -> None:
    """h = E_q[H(c | w)] along the line through both components, by adaptive quadrature of its definition."""

    def integrand(t: float) -> float:
        log_kept, log_dropped = math.log(p) + norm.logpdf(t, d), math.log(1 - p) + norm.logpdf(t)
        top = max(log_kept, log_dropped)
        log_q = top + math.log(math.exp(log_kept - top) + math.exp(log_dropped - top))
        parts = [math.exp(log_joint - log_q) for log_joint in (log_kept, log_dropped)]
        return math.exp(log_q) * -sum(r * math.log(r) for r in parts if r > 0)

    middle = d / 2 - math.log(p / (1 - p)) / d
    points = sorted({0.0, d, middle, middle - 8 / d, middle + 8 / d})
    inside = [t for t in points if -10 < t < d + 10]
    want = quad(integrand, -10, d + 10, points=inside, limit=500, epsabs=1e-13, epsrel=1e-12)[0]
    assert float(lost_entropy(torch.tensor(p), torch.tensor(d))) == pytest.approx(want, abs=2e-11)


def test_lost_entropy_runs_from_all_to_nothing() -> None:
    p = torch.tensor([0.5, 0.2, 1.0])
    torch.testing.assert_close(lost_entropy(p, torch.zeros(3)), binary_entropy(p, 1 - p), atol=1e-13, rtol=0)
    torch.testing.assert_close(lost_entropy(p, torch.full((3,), 1e6)), torch.zeros(3))
    single = lost_entropy(
        torch.tensor([0.5, 0.9], dtype=torch.float32), torch.tensor([300.0, 20.0], dtype=torch.float32)
    )
    assert bool(torch.isfinite(single).all())


@pytest.mark.parametrize("logit", [-40.0, -20.0, 14.0, 20.0])
def test_in_single_precision_a_rate_near_0_or_1_is_that_of_double_precision(logit: float) -> None:
    """1 - 1e-6 in float32 is 1.3 % off as 1 - p, and at 1 - 1e-9 it is 0, and the gradient NaN."""
    found = []
    for dtype in (torch.float32, torch.float64):
        start, loc = torch.tensor(logit, dtype=dtype, requires_grad=True), torch.ones(2, 3, dtype=dtype)
        relaxed = RelaxedBernoulliMixture(loc, start)
        value = kl_divergence(relaxed, Gaussian(scale=0.5).expand(2, 3, like=loc))
        fixed = BernoulliMixture(loc, 1 / (1 + math.exp(-logit)))
        number = kl_divergence(fixed, Gaussian(scale=0.5).expand(2, 3, like=loc))
        moments = torch.stack([fixed.mean, fixed.variance, relaxed.mean, relaxed.variance]).detach()
        found.append(torch.stack([value, number, *torch.autograd.grad(value, start)]).detach().double())
        found.append(moments.flatten().double())
    want = found[2:]
    p = 1 / (1 + math.exp(logit))
    assert float(want[1][0]) == pytest.approx(p, rel=1e-9)
    torch.testing.assert_close(found[0], want[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found[1], want[1], rtol=1e-5, atol=1e-20)


def test_mixture_divergence_has_its_gradient() -> None:
    loc = torch.randn(3, 4, requires_grad=True)
    p = Gaussian(scale=0.5).expand(3, 4)
    assert torch.autograd.gradcheck(lambda m: kl_divergence(BernoulliMixture(m, 0.3, 0.6), p), (loc,))
    zero = torch.zeros(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(kl_divergence(BernoulliMixture(zero, 0.3, 0.6), p), zero)
    assert torch.equal(gradient, torch.zeros(3, 4))


def test_the_limit_is_the_mixture_without_its_constant() -> None:
    """KL(theta) + K/2 ln(2 pi e theta^2) tends to the divergence of the atoms, whatever the prior's scale."""
    m, theta = torch.randn(4, 6) + 2, 1e-5
    constant = 24 / 2 * math.log(2 * math.pi * math.e * theta**2)
    for sigma in (0.5, 3.0):
        p = Gaussian(scale=sigma).expand(4, 6)
        torch.testing.assert_close(
            kl_divergence(BernoulliMixture(m, 0.2, theta), p) + constant, kl_divergence(BernoulliMixture(m, 0.2), p)
        )


@pytest.mark.parametrize("per", ["input", "weight"])
def test_the_divergence_of_atoms_is_a_sum_over_all_masks(per: str) -> None:
    """sum_z q(z) [ln q(z) - ln p(W_z)], every mask enumerated, for a prior with a scale a weight and a mean."""
    m, rate = torch.randn(2, 3), 0.3
    p = dist.Normal(0.3 * torch.randn(2, 3), torch.rand(2, 3) + 0.5).to_event(2)
    count = 3 if per == "input" else 6
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)))
    weights = (masks[:, None, :] if per == "input" else masks.reshape(-1, 2, 3)) * m
    log_q = (masks * math.log(1 - rate) + (1 - masks) * math.log(rate)).sum(1)
    want = (log_q.exp() * (log_q - p.log_prob(weights))).sum()
    torch.testing.assert_close(kl_divergence(BernoulliMixture(m, rate, per=per), p), want)  # type: ignore[arg-type]


def test_at_rate_zero_the_divergence_is_that_of_a_point() -> None:
    m, p = torch.randn(2, 3), dist.Normal(torch.zeros(2, 3), torch.rand(2, 3) + 0.5).to_event(2)
    torch.testing.assert_close(kl_divergence(BernoulliMixture(m, 0.0), p), -p.log_prob(m))
    torch.testing.assert_close(kl_divergence(dist.Delta(m).to_event(2), p), -p.log_prob(m))


@pytest.mark.few(1)
def test_atoms_by_monte_carlo_leave_out_the_same_constant() -> None:
    """Where there is no closed form: the mean over draws of ln q(mask) - ln p(W) is the sum over masks."""
    m, rate = torch.randn(2, 3), 0.3
    q, p = BernoulliMixture(m, rate), Heavy(0.7).expand(2, 3)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    log_q = (masks * math.log(1 - rate) + (1 - masks) * math.log(rate)).sum(1)
    want = (log_q.exp() * (log_q - p.log_prob(masks[:, None, :] * m))).sum()
    draws = torch.stack([divergence(q, p, q.sample()) for _ in range(4000)])
    assert abs(float(draws.mean() - want)) < 4 * float(draws.std()) / math.sqrt(4000)


def test_divergence_of_vectors_convolutions_and_batches() -> None:
    """A vector's elements are units of their own; a batch keeps its shape; a convolution flattens to a matrix."""
    p = Gaussian(scale=0.5)
    v = torch.randn(4)
    torch.testing.assert_close(
        kl_divergence(BernoulliMixture(v, 0.2, 0.1), p.expand(4)),
        kl_divergence(BernoulliMixture(v[None], 0.2, 0.1), p.expand(1, 4)),
    )
    kernel = torch.randn(2, 3, 5, 5)
    matrix = kernel.transpose(1, 3).reshape(50, 3)
    torch.testing.assert_close(
        kl_divergence(BernoulliMixture(kernel, 0.2, 0.1), p.expand(2, 3, 5, 5)),
        kl_divergence(BernoulliMixture(matrix, 0.2, 0.1), p.expand(50, 3)),
    )
    batch = BernoulliMixture(torch.randn(2, 3), 0.2, 0.1).at(torch.randn(7, 2, 3))
    each = torch.stack([kl_divergence(BernoulliMixture(m, 0.2, 0.1), p.expand(2, 3)) for m in batch.loc])
    torch.testing.assert_close(kl_divergence(batch, p.expand(2, 3)), each)


def test_a_prior_that_is_not_centred() -> None:
    q = BernoulliMixture(torch.randn(3, 2), 0.4, 0.3)
    p = dist.Normal(torch.randn(3, 2), torch.rand(3, 2) + 0.5).to_event(2)
    ratio = _log_ratio(q, p, 400_000)
    assert abs(float(kl_divergence(q, p) - ratio.mean())) < 3 * float(ratio.std()) / math.sqrt(len(ratio))


def test_conventions() -> None:
    p = Gaussian().expand(2, 2)
    w = torch.ones(2, 2)
    assert convention(BernoulliMixture(w, 0.5, 0.1), p) == EXACT
    assert convention(BernoulliMixture(w, 0.5), p) == ATOMS
    assert convention(BernoulliMixture(w, 0.5), Heavy().expand(2, 2)) == ATOMS  # estimated from samples
    assert convention(BernoulliMixture(w, 0.5, 0.1), Heavy().expand(2, 2)) == EXACT
    assert convention(dist.Normal(w, 1.0).to_event(2), p) == EXACT
    assert convention(dist.Delta(w).to_event(2), p) == POINT
    fits = [Convention("approximate", "a", 0.1), EXACT, Convention("approximate", "b", 0.3)]
    assert worst(fits) == Convention("approximate", "a; b", 0.3)
    assert worst([EXACT, ATOMS, fits[0]]) == ATOMS
    assert worst([]) == EXACT
