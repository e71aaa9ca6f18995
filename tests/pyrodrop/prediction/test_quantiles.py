"""Quantiles of predictive mixtures, against SciPy's root finding, NumPy's quantiles and samples."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, stats

from pyrodrop.prediction import quantiles
from pyrodrop.prediction.prediction import Prediction

LEVELS = [1e-6, 0.05, 0.5, 0.9, 0.999]


def mixture(*shape: int) -> Prediction:
    """Components that are far apart, of scales that differ a hundredfold."""
    torch.manual_seed(0)
    f = 100 + 30 * torch.randn(shape, dtype=torch.float64)
    return Prediction(
        f, dist.Normal(f, torch.logspace(-1, 1, shape[0]).reshape(-1, *(1,) * (len(shape) - 1))).to_event(1)
    )


def by_scipy(f: np.ndarray[Any, Any], sd: np.ndarray[Any, Any], q: float) -> float:
    return optimize.brentq(lambda y: stats.norm.cdf(y, f, sd).mean() - q, f.min() - 99, f.max() + 99, xtol=1e-13)  # type: ignore[no-any-return]


@pytest.mark.parametrize("at_a_time", [2**20, 20])
def test_quantiles_of_a_gaussian_mixture_are_the_roots_of_its_cdf(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also point by point, where not all fit into memory."""
    monkeypatch.setattr(quantiles, "_AT_A_TIME", at_a_time)
    prediction = mixture(11, 4, 2)
    sd = prediction.distribution.base_dist.scale.expand(11, 4, 2).numpy()  # type: ignore[attr-defined]
    got = prediction.quantile(LEVELS)
    assert got.shape == (5, 4, 2)
    for place, q in enumerate(LEVELS):
        want = [[by_scipy(prediction.f[:, n, d].numpy(), sd[:, n, d], q) for d in range(2)] for n in range(4)]
        np.testing.assert_allclose(got[place], want, rtol=1e-9)
        assert torch.equal(prediction.quantile(q), got[place])


def test_a_quantile_takes_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newton's method doubles the digits in every step; halving alone would take about fifty."""
    calls, cdf = [], quantiles.cdf
    monkeypatch.setattr(quantiles, "cdf", lambda *arguments: calls.append(1) or cdf(*arguments))
    f = torch.randn(200, 15, 1, generator=torch.Generator().manual_seed(0)).double()
    Prediction(f, dist.Normal(f, 0.5).to_event(1)).quantile(0.025)
    assert len(calls) <= 15


def test_an_interval_has_its_probability_of_the_samples() -> None:
    """In 4 standard errors of 200,000 samples, below and above."""
    prediction = mixture(7, 3, 1)
    low, high = prediction.interval(0.8)
    draws = prediction.sample_y(200_000)
    se = math.sqrt(0.1 * 0.9 / 200_000)
    for share in ((draws < low).double().mean(0), (draws > high).double().mean(0)):
        assert float((share - 0.1).abs().max()) < 4 * se
    torch.testing.assert_close(prediction.cdf(high) - prediction.cdf(low), torch.full((3, 1), 0.8).double())


def test_a_gap_between_the_components_is_no_obstacle() -> None:
    """The density is 0 there in floating point, so that Newton's step is infinite."""
    f = torch.tensor([-1e6, -1e6, -1e6, 1e6]).reshape(4, 1, 1).double()
    prediction = Prediction(f, dist.Normal(f, 1.0).to_event(1))
    np.testing.assert_allclose(prediction.quantile(0.6), -1e6 + stats.norm.ppf(0.8), rtol=1e-12)
    np.testing.assert_allclose(prediction.quantile(0.9), 1e6 + stats.norm.ppf(0.6), rtol=1e-12)
    assert -1e6 < float(prediction.quantile(0.75)) < 1e6


@pytest.mark.parametrize("q", [1e-9, 1e-7, 1 - 2**-29])
def test_quantiles_far_out(q: float) -> None:
    """Against SciPy on the log scale, in the lower tail; 1 - q is exact, so that the upper tail is its mirror image."""
    tail = min(q, 1 - q)
    for loc, scale in ([0.0], [1.0]), ([0.0, 1e-9], [1.0, 1.0]), ([-1.0, 2.0], [1.0, 1.0]), ([0.0, 3.0], [2.0, 0.5]):
        sign = 1.0 if q < 0.5 else -1.0
        f = sign * torch.tensor(loc, dtype=torch.float64)[:, None, None]
        sd = torch.tensor(scale, dtype=torch.float64)[:, None, None]

        def missing(y: float, loc: Any = loc, scale: Any = scale) -> float:
            return float(np.logaddexp.reduce(stats.norm.logcdf(y, loc, scale)) - np.log(len(loc)) - np.log(tail))

        want = sign * optimize.brentq(missing, -200, 5, xtol=1e-13)
        got = float(Prediction(f, dist.Normal(f, sd).to_event(1)).quantile(q))
        assert got == pytest.approx(want, rel=1e-7)


def test_other_continuous_likelihoods() -> None:
    f = torch.tensor([[[0.5, 1.0]], [[2.0, 1.5]]])
    laplace = Prediction(f, dist.Laplace(f, 0.3).to_event(1)).quantile(0.3)
    positive = Prediction(f, dist.LogNormal(f, 0.4).to_event(1)).quantile(0.3)
    for d in range(2):
        draws = f[:, 0, d].numpy()
        want = optimize.brentq(lambda y, draws=draws: stats.laplace.cdf(y, draws, 0.3).mean() - 0.3, -5, 5)
        assert float(laplace[0, d]) == pytest.approx(want, rel=1e-6)
        want = optimize.brentq(
            lambda y, draws=draws: stats.lognorm.cdf(y, 0.4, scale=np.exp(draws)).mean() - 0.3, 1e-3, 50
        )
        assert float(positive[0, d]) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.3, 0.5, 0.9, 1 - 2**-29])
def test_quantiles_of_students_t(q: float) -> None:
    """Of components that are far apart; probabilities by SciPy."""
    loc, scale, df = (torch.tensor(v).double()[:, None, None] for v in ([-3.0, 0, 50], [0.1, 1, 20], [1.5, 4, 30]))
    prediction = Prediction(loc, dist.StudentT(df, loc, scale).to_event(1))
    y = float(prediction.quantile(q))
    below = stats.t.cdf(y, df.flatten(), loc.flatten(), scale.flatten()).mean()
    above = stats.t.sf(y, df.flatten(), loc.flatten(), scale.flatten()).mean()
    assert below == pytest.approx(q, rel=1e-6) if q <= 0.5 else above == pytest.approx(1 - q, rel=1e-6)
    assert float(prediction.cdf(torch.full((1, 1), y, dtype=torch.float64))) == pytest.approx(below, rel=1e-9)


def counts() -> dict[str, tuple[Any, Any]]:
    """Components of very different rates, as Pyro and as SciPy have them, ``[5, 30, 2]``."""
    torch.manual_seed(0)
    shape = (5, 30, 2)
    rate = torch.distributions.Gamma(0.5, 0.02).sample(shape).double()
    logits, n = 2 * torch.randn(shape).double(), torch.randint(0, 30, shape).double()
    p, some = logits.sigmoid(), n + 0.5
    return {
        "Poisson": (dist.Poisson(rate), stats.poisson(rate.numpy())),
        "NegativeBinomial": (dist.NegativeBinomial(some, logits=logits), stats.nbinom(some.numpy(), 1 - p.numpy())),
        "NegativeBinomial, one r": (dist.NegativeBinomial(2.5, probs=p), stats.nbinom(2.5, 1 - p.numpy())),
        "Bernoulli": (dist.Bernoulli(logits=logits), stats.bernoulli(p.numpy())),
    }  # fmt: skip


KINDS = ["Poisson", "NegativeBinomial", "NegativeBinomial, one r", "Bernoulli"]


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_of_counts_are_the_smallest_with_the_probability(kind: str) -> None:
    """Of the mixture, far out in both tails too: SciPy's probabilities up to k reach q, those up to k - 1 do not."""
    distribution, by_scipy = counts()[kind]
    prediction = Prediction(torch.ones(5, 30, 2), distribution.expand([5, 30, 2]).to_event(1))
    for q in (1e-9, 0.05, 0.3, 0.5, 0.9, 0.999, 1 - 2**-29):
        k = prediction.quantile(q)
        assert (k.dtype, k.shape) == (torch.int64, (30, 2))
        assert int(k.min()) >= 0
        close = 1e-6  # relative error of the probabilities of both, 1e-15 absolute
        if q <= 0.5:
            reached, missed = by_scipy.cdf(k).mean(0) >= q * (1 - close), by_scipy.cdf(k - 1).mean(0) < q * (1 + close)
        else:
            reached = by_scipy.sf(k).mean(0) <= (1 - q) * (1 + close)
            missed = by_scipy.sf(k - 1).mean(0) > (1 - q) * (1 - close)
        assert bool((reached & missed).all())
    low, high = prediction.interval(0.8)
    inside = by_scipy.cdf(high) - by_scipy.cdf(low - 1)
    assert float(inside.mean(0).min()) >= 0.8 - 1e-9


def test_a_probability_that_is_reached_exactly_is_reached() -> None:
    """F(0) = 0.2 of Bernoulli draws of mean 0.8, whose floating-point mean is below 0.2."""
    probs = torch.tensor([0.9, 0.8, 0.7], dtype=torch.float64).reshape(3, 1, 1)
    prediction = Prediction(probs, dist.Bernoulli(probs).to_event(1))
    for q, want in ((0.2, 0), (0.2 + 1e-9, 1), (0.9, 1)):
        assert int(prediction.quantile(q)) == want
    large = torch.full((1, 1, 1), 1e12, dtype=torch.float64)
    got = Prediction(large, dist.Poisson(large).to_event(1)).quantile([1e-8, 0.5, 1 - 1e-8]).flatten().double()
    sd = 1e6  # Cornish-Fisher: m + z sd + (z^2 - 1) / 6, exact to 1 / sd
    z = stats.norm.ppf([1e-8, 0.5, 1 - 1e-8])
    np.testing.assert_allclose(got, 1e12 + sd * z + (z**2 - 1) / 6, rtol=0, atol=2)


@pytest.mark.parametrize("mean", [1e4, 1e7])
def test_the_tails_of_large_counts(mean: float) -> None:
    """Against the sum of the probabilities of all further counts, by mpmath; SciPy's own are wrong far above the mean."""
    distribution = Prediction(
        torch.ones(1, 1, 1), dist.Poisson(torch.full((1, 1, 1), mean, dtype=torch.float64)).to_event(1)
    )
    for q in (1e-9, 1 - 2**-29):
        k = int(distribution.quantile(q))
        up = q > 0.5
        first = k + 1 if up else k  # P(Y > k), or P(Y <= k)
        steps = np.arange(1, 100_000.0)
        ratios = np.cumprod(mean / (first + steps)) if up else np.cumprod((first + 1 - steps[steps <= first]) / mean)
        with mp.workdps(40):
            term = mp.exp(first * mp.log(mean) - mean - mp.loggamma(first + 1))
            total = term * (1 + mp.mpf(float(ratios.sum())))
            bound = mp.mpf(1 - q if up else q)
            assert total <= bound * (1 + 1e-6) if up else total >= bound * (1 - 1e-6)
            assert total + term * (first / mean) > bound if up else total - term < bound


def test_what_has_no_quantiles_is_refused() -> None:
    labels = Prediction(torch.randn(30, 4, 3), dist.Categorical(logits=torch.randn(30, 4, 3)))
    with pytest.raises(TypeError, match="got Categorical"):
        labels.interval(0.9)
    undeclared = type("Undeclared", (torch.distributions.Distribution,), {"arg_constraints": {}})
    bare = Prediction(torch.ones(2, 3), undeclared(torch.Size([2, 3]), validate_args=False))
    with pytest.raises(TypeError, match="got Undeclared: take "):
        bare.quantile(0.5)
    ones = torch.ones(2, 3, 1)
    subclass = type("Own", (dist.Poisson,), {})(ones)
    for distribution in (
        subclass,
        dist.Binomial(3, ones / 2),
        dist.ZeroInflatedPoisson(ones, gate=ones / 2),
        dist.BetaBinomial(ones, ones, 3),
    ):
        with pytest.raises(TypeError, match=f"whose cumulative .*got {type(distribution).__name__}: take "):
            Prediction(ones, distribution.to_event(1)).quantile(0.5)
    for distribution in (type("Own", (dist.StudentT,), {})(ones), type("Own", (dist.Gamma,), {})(ones, ones)):
        with pytest.raises(TypeError, match="inverse are known, .*; got Own: take "):
            Prediction(ones, distribution.to_event(1)).quantile(0.5)
    with pytest.raises(ValueError, match="at most 2.53 to be exact"):
        Prediction(ones, dist.Poisson(1e17 * ones).to_event(1)).quantile(0.5)
    for df in (0.01, 0.05):
        with pytest.raises(ValueError, match="quantiles must be finite; got infinite ones for q=1e-09"):
            Prediction(ones, dist.StudentT(df, ones).to_event(1)).quantile(1e-9)
    joint = dist.MultivariateNormal(torch.zeros(2, 3, 2), torch.eye(2))
    with pytest.raises(TypeError, match="got MultivariateNormal"):
        Prediction(torch.ones(2, 3, 2), joint).quantile(0.5)
    for q in (1e-10, 1e-20, 1 - 1e-12):
        for distribution in (dist.Gumbel(ones, 1.0), dist.Normal(ones, 1.0), dist.Poisson(ones)):
            with pytest.raises(ValueError, match="at least 1e-09 from 0 and 1, .*; got "):
                Prediction(ones, distribution.to_event(1)).quantile([0.5, q])
    nan = Prediction(torch.ones(2, 3, 1), dist.Normal(torch.ones(2, 3, 1), 1.0).to_event(1))
    rates = Prediction(ones, dist.Poisson(ones.clone()).to_event(1))
    for broken in (math.inf, math.nan):
        nan.distribution.base_dist.loc[0, 0, 0] = rates.distribution.base_dist.rate[0, 0, 0] = broken  # type: ignore[attr-defined]
        for prediction in (nan, rates):
            with pytest.raises(ValueError, match="quantiles need finite predictions"):
                prediction.quantile(0.5)
