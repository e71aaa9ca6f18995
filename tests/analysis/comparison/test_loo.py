"""Leave-one-out cross-validation against its closed form, and when it must be refused."""

from __future__ import annotations

import math
from typing import Any

import arviz_stats
import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.comparison.khat import k_hat
from pyrodrop.analysis.comparison.loo import UnreliableLoo, loo
from pyrodrop.analysis.comparison.reloo import reloo


def plain(fit: Any) -> float:
    """What ArviZ says of draws of q as if they were draws from the posterior."""
    return float(arviz_stats.loo(pyrodrop.to_arviz(fit, fit.data, num_samples=4000, log_likelihood=True)).elpd)


def test_of_the_exact_posterior_it_is_exact(small: Any) -> None:
    fit, exact = small.conjugate(1.0)
    found = loo(fit, num_samples=4000)
    assert abs(found.elpd - float(exact.sum())) < 0.1
    assert found.k_hat < 0.7
    assert float((found.pointwise[0] - exact).abs().max()) < 0.05
    assert found.se == pytest.approx(float(exact.std()) * math.sqrt(len(exact)), rel=0.02)


@pytest.mark.more
def test_of_draws_of_the_exact_posterior_it_is_exact(small: Any) -> None:
    fit, exact = small.conjugate(1.0)
    settings: Any = {"chains": 16, "tune": 150, "max_steps": 12, "engine": "traced", "progress": False}
    sampled = pyrodrop.sample(fit.model, fit.data, draws=150, **settings)
    found = loo(sampled)
    assert abs(found.elpd - float(exact.sum())) < 0.15
    assert float((found.pointwise[0] - exact).abs().max()) < 0.1
    assert found.k_hat_q is None
    assert "of q" not in str(found)
    ranked = pyrodrop.compare({"q": fit, "exact": sampled}, by="loo")
    assert ranked.rows["exact"]["elpd"] == pytest.approx(found.elpd)
    with pytest.raises(ValueError, match="loo needs the data that the draws were made for"):
        loo(sampled, (fit.data.x, fit.data.y + 1))
    with pytest.raises(TypeError, match=r"fit must be a Fit; got a Sampled.*sample again without"):
        reloo(sampled, fit.model, fit.guide)
    tempered = pyrodrop.sample(fit.model, fit.data, draws=4, likelihood_power=0.5, **settings)
    with pytest.raises(ValueError, match="needs draws with likelihood_power 1; these have 0.5"):
        loo(tempered)
    tree = pyrodrop.to_arviz(tempered, fit.data)
    assert tree.attrs["log_likelihood_missing"] == "the draws are of a posterior with likelihood_power 0.5"
    assert "log_likelihood" in pyrodrop.to_arviz(sampled, fit.data, num_samples=16).children


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_half_the_variance_is_flagged_where_plain_loo_is_wrong(small: Any) -> None:
    """Too narrow a q: plain LOO is optimistic by about two nats and sees nothing; the corrected k-hat says no."""
    fit, exact = small.conjugate(0.5)
    off = plain(fit) - float(exact.sum())
    assert 1.5 < off < 3.5
    with pytest.raises(
        UnreliableLoo, match=r"the largest k-hat is 0\.\d+, .* observations have one above 0.7 .*force=True"
    ):
        loo(fit, num_samples=4000)
    forced = loo(fit, num_samples=4000, force=True)
    assert forced.k_hat > 0.7
    assert abs(forced.elpd - float(exact.sum())) < 0.5 * abs(off)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_twice_the_variance_is_corrected_where_plain_loo_is_wrong(small: Any) -> None:
    """Too wide a q covers the posterior: plain LOO is pessimistic by several nats, and the correction mends it."""
    fit, exact = small.conjugate(2.0)
    assert plain(fit) - float(exact.sum()) < -3
    found = loo(fit, num_samples=4000)
    assert abs(found.elpd - float(exact.sum())) < 0.1
    assert found.k_hat < 0.5


@pytest.mark.parametrize("shape", [0.3, 0.9])
def test_k_hat_is_the_shape_of_the_tail(shape: float) -> None:
    """Of ratios that are generalised Pareto themselves. The tail is the largest 3 sqrt(S) of S ratios, and the standard
    error of its shape (1 + k) / sqrt(tail)."""
    size = 1_000_000
    u = torch.rand(size, dtype=torch.float64)
    standard_error = (1 + shape) / math.sqrt(3 * math.sqrt(size))
    assert k_hat(torch.log((u**-shape - 1) / shape)) == pytest.approx(shape, abs=4.5 * standard_error)


@pytest.mark.parametrize("rounding", [0.0, 1e-15, 1e-13])
def test_equal_ratios_have_no_tail(rounding: float) -> None:
    """Of 200 draws of p itself, whose densities differ by rounding alone."""
    torch.manual_seed(0)
    assert k_hat(-100 + rounding * torch.randn(200, dtype=torch.float64)) == -math.inf
    assert k_hat(-100 + 1e-6 * torch.randn(200, dtype=torch.float64)) > -1


def test_no_density_is_nan_with_the_reason(small: Any) -> None:
    found = loo(small.fitted(small.dropout, steps=2), num_samples=25)
    assert math.isnan(found.elpd)
    assert "theta -> 0" in found.reason
    assert str(found).startswith("NaN: log p - log q does not exist at 'layers.0.weight'")
    assert bool(found.pointwise[0].isnan().all())


def test_mistakes(small: Any) -> None:
    many = small.fitted(small.dropout, count=2, steps=2)
    with pytest.raises(TypeError, match="fit must be a Fit.*got a Replicates"):
        loo(many)
    model = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    loaded = pyrodrop.Fit(model, guides.MeanField(model), None, torch.zeros(1, 3), {})
    with pytest.raises(ValueError, match="pass them, as loo"):
        loo(loaded)
    with pytest.raises(ValueError, match="for k-hat, and must be a whole number of at least 25; got 24"):
        loo(many[0], num_samples=24)
