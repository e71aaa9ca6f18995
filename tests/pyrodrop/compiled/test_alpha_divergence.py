"""The alpha-divergence objective by NumPy, and bounds of importance-weighted draws against the exact evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, RenyiELBO
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.experiments.remedies import bounds
from pyrodrop.analysis.networks.alone import drawn_as_alone

K, TAU, RATE = 7, 4.0, 0.3
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True).sin()


def model() -> models.NetworkModel:
    net = nn.Sequential(nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 1, bias=False))
    return models.from_module(net, priors.Gaussian(0.8), likelihoods.Gaussian(TAU))


def densities(own: Any, draws: int) -> np.ndarray:
    """ln p(y_n | x_n, W_k) of the draws that follow this state of torch's generator, ``[K, N]``."""
    torch.manual_seed(0)
    rows = []
    for _ in range(draws):
        drawn = {name: value.detach().double().numpy() for name, value in own().items()}
        f = np.tanh(X.double().numpy() @ drawn["0.weight"].T) @ drawn["2.weight"].T
        rows.append(norm.logpdf(Y.double().numpy(), f, TAU**-0.5)[:, 0])
    return np.stack(rows)


def divergence(own: Any) -> float:
    """That of dropout: (1 - r) |m|^2 / (2 s^2) + ln(2 pi s^2) / 2 for each weight, less the entropy of each mask."""
    means = [own.loc[name].detach().double().numpy() for name in own.sites]
    entropy = -RATE * np.log(RATE) - (1 - RATE) * np.log(1 - RATE)
    return sum(
        (1 - RATE) * (m**2).sum() / (2 * 0.8**2) + m.size * np.log(2 * np.pi * 0.8**2) / 2 - m.shape[1] * entropy
        for m in means
    )


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_loss_is_that_of_the_paper(alpha: float) -> None:
    own = model()
    guide = guides.BernoulliDropout(own, RATE)
    want = divergence(guide) - (logsumexp(alpha * densities(guide, K), 0) - np.log(K)).sum() / alpha
    torch.manual_seed(0)
    got = pyrodrop.AlphaDivergence(alpha, K).loss(own, guide, X, Y)
    assert float(got) == pytest.approx(want, rel=1e-5)


def test_a_small_alpha_is_the_elbo() -> None:
    own = model()
    guide = guides.BernoulliDropout(own, RATE)
    want = divergence(guide) - densities(guide, K).mean(0).sum()
    torch.manual_seed(0)
    assert float(pyrodrop.AlphaDivergence(1e-3, K).loss(own, guide, X, Y)) == pytest.approx(want, rel=2e-3)


def test_minibatches_of_equal_draws_have_the_loss_of_all_rows_on_average() -> None:
    own = model().double()
    guide = guides.BernoulliDropout(own, RATE)
    x, y, loss = X.double(), Y.double(), pyrodrop.AlphaDivergence(0.5, K)
    values = []
    for rows in (slice(0, 4), slice(4, 8), slice(8, 12), slice(None)):
        torch.manual_seed(0)
        values.append(float(loss.loss(own, guide, x[rows], y[rows], num_data=12)))
    assert np.mean(values[:3]) == pytest.approx(values[3], rel=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", ["shared", "per_example", "local"])
def test_engines_agree_and_train(estimator: Any) -> None:
    own = model()
    guide, loss = guides.BernoulliDropout(own, RATE), pyrodrop.AlphaDivergence(0.5, 4)
    settings: dict[str, Any] = {
        "steps": 8, "estimator": estimator, "batch_size": 6, "objective": loss, "progress": False, "lr": 0.05,
    }  # fmt: skip
    eager, traced = (pyrodrop.fit(own, guide, (X, Y), engine=engine, **settings) for engine in ("pyro", "traced"))
    torch.testing.assert_close(eager.losses, traced.losses, rtol=1e-4, atol=1e-3)
    with drawn_as_alone(0, 1):
        many = pyrodrop.fit_replicates(own, guide, (X, Y), count=2, engine="traced", **settings)
    torch.testing.assert_close(many[0].losses, traced.losses, rtol=1e-4, atol=1e-3)
    assert not torch.equal(traced.guide.loc["0.weight"], guide.loc["0.weight"])
    assert str(traced.objective(2).convention) == "objective (minus the loss of AlphaDivergence)"


def test_svi_of_pyro_takes_it() -> None:
    own = model()
    guide = guides.MeanField(own)
    svi = SVI(own, guide, pyro.optim.Adam({"lr": 0.05}), pyrodrop.AlphaDivergence(0.5, 3))
    losses = [float(svi.step(X, Y)) for _ in range(100)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])


def test_two_observed_sites_are_refused() -> None:
    def two(x: Any) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        for name in ("a", "b"):
            pyro.sample(name, dist.Normal(m, 1.0), obs=x)

    def guide(x: Any) -> None:
        pyro.sample("m", dist.Normal(pyro.param("loc", torch.zeros(())), 1.0))

    with pytest.raises(ValueError, match="one observed site; got 'a', 'b'"):
        pyrodrop.AlphaDivergence(0.5, 2).loss(two, guide, torch.zeros(()))


# Importance-weighted bounds


@pytest.fixture(scope="module")
def regression() -> tuple[Any, Any, torch.Tensor, torch.Tensor, float]:
    """A linear regression with a factorised posterior, and its evidence by SciPy."""
    x, y = bounds.problem(0)
    net = nn.Linear(bounds.COLUMNS, 1, bias=False)
    own = models.from_module(net, priors.Gaussian(1.0), likelihoods.Gaussian(bounds.PRECISION))
    fit = pyrodrop.fit(own, guides.MeanField(own), (x, y), steps=600, lr=0.03, engine="traced", progress=False)
    covariance = (x.double() @ x.double().T).numpy() + np.eye(len(x)) / bounds.PRECISION
    evidence = float(multivariate_normal(np.zeros(len(x)), covariance).logpdf(y.double().numpy()[:, 0]))
    return fit.model, fit.guide, x, y, evidence


def test_bounds_are_below_the_evidence_and_rise_with_the_number_of_draws(regression: Any) -> None:
    own, guide, x, y, evidence = regression
    assert bounds.log_evidence(x, y) == pytest.approx(evidence, rel=1e-9)
    means = []
    for k, count in ((1, 400), (10, 60), (100, 15)):
        torch.manual_seed(k)
        many: dict[str, Any] = {"num_particles": k, "vectorize_particles": True, "max_plate_nesting": 1}
        pyro_loss = RenyiELBO(alpha=0, **many) if k > 1 else pyro.infer.Trace_ELBO()
        values = np.array([-pyro_loss.loss(own, guide, x, y) for _ in range(count)])
        means.append((values.mean(), values.std() / count**0.5))
    (first, e1), (second, e2), (third, e3) = means
    assert first + 3 * e1 < second - 3 * e2
    assert second - 2 * e2 < third + 2 * e3
    assert third < evidence + 3 * e3
    fit = pyrodrop.Fit(own, guide, None, torch.zeros(0, 3), {})
    weights = bounds.log_weights(fit, x, y, 20_000, 0).numpy()
    assert weights.mean() == pytest.approx(first, abs=4 * e1)
    assert (logsumexp(weights.reshape(-1, 100), 1) - np.log(100)).mean() == pytest.approx(third, abs=4 * e3 + 0.02)


@pytest.mark.more
def test_training_by_a_bound_of_ten_draws(regression: Any) -> None:
    own, guide, x, y, evidence = regression
    loss, more = RenyiELBO(alpha=0, num_particles=10), {"steps": 60, "lr": 0.01, "progress": False}
    fits = [pyrodrop.fit(own, guide, (x, y), objective=loss, engine=engine, **more) for engine in ("pyro", "traced")]
    torch.testing.assert_close(fits[0].losses, fits[1].losses, rtol=1e-4, atol=1e-3)
    assert -float(fits[0].losses[-30:].mean()) < evidence
    assert str(fits[0].elbo(5).convention) == "exact"
    assert "minus the loss of Pyro's RenyiELBO" in str(fits[0].objective(5).convention)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"batch_size": 10}, "batch_size must be None"), ({"estimator": "local"}, "estimator must be 'shared'"),
     ({"estimator": "per_example"}, "estimator must be 'shared'")],
)  # fmt: skip
def test_what_is_no_bound_is_refused(regression: Any, settings: Any, words: str) -> None:
    own, guide, x, y, _ = regression
    loss = RenyiELBO(alpha=0, num_particles=2)
    with pytest.raises(ValueError, match=words):
        pyrodrop.fit(own, guide, (x, y), steps=1, objective=loss, progress=False, **settings)
    with pytest.raises(ValueError, match=words):
        pyrodrop.fit_replicates(own, guide, (x, y), count=2, steps=1, objective=loss, progress=False, **settings)


@pytest.mark.parametrize(
    "guide",
    [guides.BernoulliDropout, guides.ConcreteDropout, guides.Point, lambda m: guides.Ensemble(m, guides.Point, 2)],
)
def test_a_posterior_without_a_density_has_no_such_bound(guide: Any) -> None:
    own, loss = model(), RenyiELBO(num_particles=2)
    with pytest.raises(ValueError, match="at theta = 0 has atoms"):
        pyrodrop.fit(own, guide(own), (X, Y), steps=1, objective=loss, progress=False)
    proper = guides.BernoulliDropout(own, RATE, theta=0.05)
    fit = pyrodrop.fit(own, proper, (X, Y), steps=3, objective=loss, engine="pyro", progress=False)
    assert bool(fit.losses.isfinite().all())
