"""Leave-one-out cross-validation against its closed form, and when it must be refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import arviz_stats
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.comparison.khat import k_hat
from pyrodrop.analysis.comparison.loo import UnreliableLoo, loo
from pyrodrop.analysis.comparison.reloo import reloo
from pyrodrop.data import Dataset
from tests.small import normal


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
    tempered = dataclasses.replace(sampled, settings={**sampled.settings, "likelihood_power": 0.5})
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


def test_no_density_is_nan_with_the_reason(small: Any) -> None:
    found = loo(small.fitted(small.dropout, steps=2), num_samples=25)
    assert math.isnan(found.elpd)
    assert "theta -> 0" in found.reason
    assert str(found).startswith("NaN: log p - log q does not exist at 'layers.0.weight'")
    assert bool(found.pointwise[0].isnan().all())


def test_of_an_exact_last_layer_it_integrates_that_layer() -> None:
    """y = w_2 tanh(w_1 x + b_1) + b_2: a multivariate normal given w_1, and quadrature over w_1, with and without row n.

    q(w_1) is the prior, so that the ratios are bounded. The standard deviation of a draw's part of the estimate, by the same
    quadrature, is 3.54 of the sum, and at most 1.79 of a row: the margins are 5 standard errors.
    """
    x, every = torch.linspace(-2, 2, 12, dtype=torch.float64)[:, None], torch.arange(12)
    y = torch.tanh(1.2 * x) + 0.5 * normal(12, 1, seed=0, dtype=torch.float64)
    model = models.MLP([1, 1, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0)).double()
    guide: Any = guides.ExactLastLayer(model)
    with torch.no_grad():
        guide.features.loc["layers.0.weight"].zero_()
        guide.features.log_variance["layers.0.weight"].zero_()
    guide.condition_on(x, y)
    b_1, b_2 = (model.free[f"layers.{layer}.bias"].detach() for layer in (0, 1))
    grid = torch.linspace(-6, 6, 601, dtype=torch.float64)
    h = torch.tanh(grid[:, None] * x[:, 0] + b_1)
    covariance = h[:, :, None] * h[:, None] + torch.eye(12, dtype=torch.float64) / 4

    def log_evidence(rows: torch.Tensor) -> torch.Tensor:
        of_y = torch.distributions.MultivariateNormal(b_2.expand(len(rows)), covariance[:, rows][:, :, rows])
        return (of_y.log_prob(y[rows, 0]) - grid**2 / 2).logsumexp(0)

    exact = torch.stack([log_evidence(every) - log_evidence(every[every != n]) for n in range(12)])
    found = loo(pyrodrop.Fit(model, guide, Dataset(x, y), torch.zeros(1, 3), {}), num_samples=300)
    assert float((found.pointwise[0] - exact).abs().max()) < 5 * 1.79 / 300**0.5
    assert abs(found.elpd - float(exact.sum())) < 5 * 3.54 / 300**0.5
    assert found.k_hat < 0.2  # 0.77 with draws of the last layer


def _regression(x: torch.Tensor, y: torch.Tensor, how: str = "plate", factor: float = 1.0) -> None:
    """y ~ N(x w, 0.5^2); the first three rows are masked."""
    w, seen = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1)), torch.arange(len(x)) > 2
    size = 5 if how == "subsample" else None
    with pyro.plate("rows", len(x), subsample_size=size) as rows, poutine.scale(scale=factor):
        of_y, keep = dist.Normal(x[rows] @ w, 0.5), seen[rows]
        with poutine.mask(mask=keep if how != "distribution" else True):
            pyro.sample("y", of_y.mask(keep) if how == "distribution" else of_y, obs=y[rows])


@pytest.mark.parametrize("how", ["plate", "distribution"])
def test_of_a_program_it_is_exact(how: str) -> None:
    """A conjugate regression on the rows that are not masked, with its exact posterior as the guide."""
    x, e = normal(30, 2, seed=1), normal(30, seed=2)
    y = x.sum(1) + 0.5 * e
    a, b, exact = x[3:].double(), y[3:].double(), []

    def posterior(rows: torch.Tensor) -> Any:
        covariance = torch.linalg.inv(torch.eye(2) + a[rows].T @ a[rows] / 0.25)
        return covariance @ a[rows].T @ b[rows] / 0.25, covariance

    for n in range(27):
        mean, covariance = posterior(torch.arange(27) != n)
        sd = (0.25 + a[n] @ covariance @ a[n]).sqrt()
        exact.append(torch.distributions.Normal(a[n] @ mean, sd).log_prob(b[n]))
    mean, covariance = (value.float() for value in posterior(torch.arange(27)))

    def guide(**_: Any) -> None:
        pyro.sample("w", dist.MultivariateNormal(pyro.param("mean", mean), covariance))

    pyro.clear_param_store()
    settings: Any = {"steps": 1, "lr": 1e-6, "seed": 0, "progress": False}
    fit = pyrodrop.fit(_regression, guide, {"x": x, "y": y, "how": how}, **settings)
    found = loo(fit, num_samples=4000)
    assert float((found.pointwise[0] - torch.stack(exact)).abs().max()) < 0.1
    assert abs(found.elpd - float(sum(exact))) < 0.2
    tree = pyrodrop.to_arviz(fit, num_samples=4000)  # k-hat lets it have the group that ArviZ reads
    assert abs(float(arviz_stats.loo(tree).elpd) - float(sum(exact))) < 0.5
    ranked = pyrodrop.compare({"a": fit, "b": fit}, by="loo", num_samples=4000)
    assert ranked.rows["a"]["elpd"] == pytest.approx(found.elpd)
    for changed, reason in (
        ({"how": "subsample"}, "in the plate 'rows' with 5 of 30 rows"),
        ({"factor": 0.5}, "that of y has a factor, of pyro.poutine.scale"),
        ({"x": x[:3], "y": y[:3]}, "observations, .* not all masked"),
    ):
        with pytest.raises(ValueError, match=reason):
            loo(pyrodrop.fit(_regression, guide, {"x": x, "y": y, "how": how, **changed}, **settings))
    other = pyrodrop.fit(_regression, guide, {"x": x, "y": y + 1, "how": how}, **settings)
    with pytest.raises(ValueError, match="'b' and 'a' have others"):
        pyrodrop.compare({"a": fit, "b": other}, by="loo", num_samples=4000, force=True)
