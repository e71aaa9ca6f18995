"""Log-normal dropout: its closed forms against quadrature, its draws against SciPy's, and what it removes."""

from __future__ import annotations

import functools
import math
from typing import Any

import mpmath
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.distributions import CorrelatedNormal
from pyrodrop.divergences import NoDivergence, convention, divergence
from pyrodrop.guides.log_normal_dropout import CorrelatedLogNormal
from tests.small import Heavy

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
LOW, HIGH = -20.0, 0.0
# mu and ln sigma: as at the start, of units that are kept, lost and in between; at the bounds of both, and beyond them
NOISE = [
    (0.0, -5.0), (-0.3, -2.0), (-1.5, 0.0), (-7.0, 1.0), (-10.0, 2.0), (0.0, 3.0),
    (-20.0, 0.0), (-20.0, 5.0), (0.0, 5.0), (-3.0, -9.0), (4.0, 0.5), (-30.0, 7.0),
]  # fmt: skip


def limited(mu: float, log_scale: float) -> tuple[float, float]:
    return min(max(mu, LOW), HIGH), math.exp(min(max(log_scale, -10.0), 5.0))


def integral(mu: float, log_scale: float, of: Any) -> mpmath.mpf:
    """The integral of q(x) of(x, q(x)) over x = ln s, with the normal density cut off at the bounds, to 20 digits."""
    mu, sigma = limited(mu, log_scale)
    with mpmath.workdps(20):
        places = {LOW, HIGH, *(min(max(mu + k * sigma, LOW), HIGH) for k in (-12, -6, -3, -1, 0, 1, 3, 6, 12))}
        mass = mpmath.quad(lambda x: mpmath.npdf(x, mu, sigma), sorted(places))
        return mpmath.quad(
            lambda x: mpmath.npdf(x, mu, sigma) / mass * of(x, mpmath.npdf(x, mu, sigma) / mass), sorted(places)
        )


def weights(dtype: torch.dtype = torch.float64, rows: int = 3) -> CorrelatedLogNormal:
    """One input unit for each of `NOISE`."""
    mu, log_scale = (torch.tensor(column, dtype=dtype) for column in zip(*NOISE, strict=True))
    torch.manual_seed(0)
    return CorrelatedLogNormal(torch.randn(rows, len(NOISE), dtype=dtype), mu, log_scale)


@functools.cache
def divergences() -> list[mpmath.mpf]:
    """The integral of q(x) ln(q(x) (b - a)) for each of `NOISE`."""
    return [integral(mu, s, lambda x, q: mpmath.log(q * (HIGH - LOW))) for mu, s in NOISE]


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_the_divergence_is_the_integral(dtype: torch.dtype, error: float) -> None:
    """Of ln(q(x) (b - a)) under q, unit by unit and in sum; the number of weights of a unit does not matter."""
    want = [float(kl) for kl in divergences()]
    for (mu, log_scale), kl in zip(NOISE, want, strict=True):
        q = CorrelatedLogNormal(
            torch.ones(2, 1, dtype=dtype), torch.tensor([mu], dtype=dtype), torch.tensor([log_scale], dtype=dtype)
        )
        assert float(q.divergence()) == pytest.approx(kl, abs=error, rel=error), (mu, log_scale)
    p = priors.LogUniform().expand(3, len(NOISE))
    total = divergence(weights(dtype), p, lambda: pytest.fail("there is a closed form"))
    assert float(total) == pytest.approx(sum(want), rel=10 * error)
    assert min(want) > 0


def test_moments_and_signal_to_noise_are_the_integrals() -> None:
    q = weights()
    for k, (mu, log_scale) in enumerate(NOISE):
        first, second = (integral(mu, log_scale, lambda x, _, n=n: mpmath.exp(n * x)) for n in (1, 2))
        with mpmath.workdps(30):
            alpha = float((second - first**2) / first**2)
        torch.testing.assert_close(q.mean[:, k], q.loc[:, k] * float(first), rtol=1e-9, atol=0)
        assert float(q.log_alpha[k]) == pytest.approx(math.log(alpha), abs=1e-6), (mu, log_scale)
        torch.testing.assert_close(q.variance[:, k], q.loc[:, k] ** 2 * alpha * float(first) ** 2, rtol=1e-5, atol=0)
    single = weights(torch.float32)
    torch.testing.assert_close(single.mean / single.loc, (q.mean / q.loc).float(), rtol=1e-4, atol=0)
    torch.testing.assert_close(single.log_alpha, q.log_alpha.float(), rtol=0, atol=1e-4)


def test_draws_are_scipys() -> None:
    """Every unit has one scale for all its weights, whose logarithm is a truncated normal variable."""
    q = weights()
    torch.manual_seed(1)
    ratio = q.sample((20_000,)) / q.loc
    torch.testing.assert_close(ratio, ratio[:, :1].expand(ratio.shape), rtol=1e-9, atol=0)
    for k, (mu, log_scale) in enumerate(NOISE):
        mu, sigma = limited(mu, log_scale)
        theirs = stats.truncnorm((LOW - mu) / sigma, (HIGH - mu) / sigma, loc=mu, scale=sigma)
        assert stats.kstest(ratio[:, 0, k].log().numpy(), theirs.cdf).pvalue > 1e-3, (mu, log_scale)
    assert bool(q.expand((4,)).sample().isfinite().all())


def test_gradients_of_draws_are_those_of_the_mean() -> None:
    """d E[s] / d mu and d E[s] / d ln sigma by differences of the integral, within 4 standard errors."""
    mu, log_scale = -1.5, 0.3
    h = 1e-4

    def mean(at: tuple[float, float]) -> float:
        return float(integral(*at, lambda x, _: mpmath.exp(x)))

    want = (
        (mean((mu + h, log_scale)) - mean((mu - h, log_scale))) / (2 * h),
        (mean((mu, log_scale + h)) - mean((mu, log_scale - h))) / (2 * h),
    )
    count = 100_000
    noise = [torch.full((count,), value, dtype=torch.float64, requires_grad=True) for value in (mu, log_scale)]
    torch.manual_seed(2)
    CorrelatedLogNormal(torch.ones(1, count).double(), *noise).rsample().sum().backward()
    for parameter, slope in zip(noise, want, strict=True):
        assert parameter.grad is not None
        assert abs(float(parameter.grad.mean()) - slope) < 4 * float(parameter.grad.std()) / count**0.5


@pytest.mark.parametrize(("parameter", "bound", "out"), [(0, HIGH, 1), (0, LOW, -1), (1, 5.0, 1), (1, -10.0, -1)])
def test_beyond_a_bound_only_the_gradient_that_leads_back_passes(parameter: int, bound: float, out: int) -> None:
    """At the bound the gradient is the difference quotient of the integral from inside, of second order, and 0.5 beyond it
    the same, if a step against it leads inside, else 0; also in a batch under functorch. The sum of all uses decides."""
    fixed, h = (-1.0 if parameter else 1.0), 1e-3

    def kl(value: float) -> float:
        mu, log_scale = (fixed, value) if parameter else (value, fixed)
        return float(integral(mu, log_scale, lambda x, q: mpmath.log(q * (HIGH - LOW))))

    slope = out * (3 * kl(bound) - 4 * kl(bound - out * h) + kl(bound - 2 * out * h)) / (2 * h)
    strong = -3 * out * abs(slope)  # leads outside, whatever the KL divergence does

    def losses(value: Tensor) -> Tensor:
        noise = [torch.full_like(value, fixed), value] if parameter else [value, torch.full_like(value, fixed)]
        q = CorrelatedLogNormal(torch.ones(1, 1).double(), *noise)
        limited = q.noise_log_scale if parameter else q.noise_loc
        return torch.stack([q.divergence(), -q.divergence(), q.divergence() + strong * limited.sum()])

    places = torch.tensor([[bound], [bound + 0.5 * out]], dtype=torch.float64)
    got = torch.func.vmap(torch.func.jacrev(losses))(places)[..., 0]
    alone = [torch.autograd.functional.jacobian(losses, place)[:, 0] for place in places]
    torch.testing.assert_close(got, torch.stack(alone), rtol=0, atol=0)
    at = [slope, -slope, slope + strong]
    want = [at, [each if each * out > 0 else 0.0 for each in at]]
    torch.testing.assert_close(got, torch.tensor(want).double(), rtol=1e-3, atol=1e-9)


def test_only_the_log_uniform_prior_has_a_divergence() -> None:
    q = weights()
    for prior in (priors.Gaussian(), priors.ARD("input"), Heavy()):
        with pytest.raises(NoDivergence, match="no density over weights.*priors.LogUniform"):
            divergence(q, prior.expand(3, len(NOISE)), q.sample)
    p = priors.LogUniform().expand(3, len(NOISE))
    known = convention(q, p)
    assert (known.kind, known.detail) == (
        "up_to_constant",
        "of the scales, from ln s uniform on [-20, 0]; the weights are point estimates without a prior",
    )
    type_a = CorrelatedNormal(q.loc, 0.0)
    assert q.constant_left_out.number == type_a.constant_left_out.number
    assert q.constant_left_out != type_a.constant_left_out, "another constant, so that ELBOs are not compared"


def data(count: int = 400, f: Any = lambda a: torch.sin(2 * a)) -> tuple[Tensor, Tensor]:
    """y depends on the first two of six inputs."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(3))
    noise = 0.14 * torch.randn(count, 1, generator=torch.Generator().manual_seed(4))
    return x, f(x[:, :1]) - 0.5 * x[:, 1:2] + noise


def trained(model: models.NetworkModel, data: tuple[Tensor, Tensor]) -> pyrodrop.Fit:
    return pyrodrop.fit(
        model,
        guides.LogNormalDropout(model),
        data,
        steps=1200,
        lr=0.02,
        estimator="local",
        kl_weight=pyrodrop.schedules.linear(300),
        lr_schedule=lambda step: min(1.0, 2 * (1 - step / 1200)),
        progress=False,
    )


def test_inputs_that_do_not_matter_are_removed() -> None:
    """Of a linear model, where an input has one weight: overfitting to it gains about half a nat, keeping it costs four."""
    net = nn.Linear(6, 1)
    model = models.from_module(net, prior=priors.LogUniform(), likelihood=likelihoods.Gaussian(50.0))
    guide: Any = trained(model, data(f=lambda a: a)).guide
    assert guide.keep_mask()["weight"].tolist() == [[True, True, False, False, False, False]]
    log_alpha = guide.log_alpha("weight").detach()
    assert float(log_alpha[:2].max()) < -3
    assert float(log_alpha[2:].min()) > 1


def test_masks_by_hand() -> None:
    """ln alpha below 0 is a ratio above 1; the mask has the shape of the weight, a vector's elements are units."""
    model = models.from_module(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)),
        prior=priors.LogUniform(),
        bias_prior={"0.bias": priors.LogUniform(), "*": None},
        likelihood=likelihoods.Categorical(),
    )
    guide = guides.LogNormalDropout(model)
    with torch.no_grad():
        guide.noise_log_scale["0.weight"][1] = 5.0
        guide.noise_log_scale["2.weight"][:4] = 5.0
        guide.noise_log_scale["0.bias"][2] = 5.0
    masks = guide.keep_mask()
    assert {n: m.shape for n, m in masks.items()} == {n: w.shape for n, w in model.weight_sites().items()}
    assert bool(masks["0.weight"][:, 0].all())
    assert not bool(masks["0.weight"][:, 1].any())
    assert masks["2.weight"][0].tolist() == [False] * 4 + [True] * 8
    assert masks["0.bias"].tolist() == [True, True, False]
    ratio = guide.rates()["0.weight"] ** -0.5
    assert float(ratio[0]) > 100
    assert float(ratio[1]) == pytest.approx(1 / 3, rel=0.05)
