"""Missing observations, against densities and gradient steps of the observed ones by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from scipy import special, stats
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, recipes
from pyrodrop.data import Dataset
from pyrodrop.scaling import Standardize
from tests.small import linear

NAN = math.nan
TAU = 4.0


class Counts(likelihoods.Likelihood):
    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.Poisson(output.exp()).to_event(1)


class Joint(likelihoods.Likelihood):
    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.MultivariateNormal(output, torch.eye(output.shape[-1]))


class Bounded(likelihoods.Likelihood):
    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.Uniform(output - 9, output + 9).to_event(1)


SOME = torch.tensor([[1.0, NAN], [NAN, 2.0], [3.0, 4.0], [NAN, NAN]])


def log_gaussian(f: Tensor, y: Tensor) -> Tensor:
    return (math.log(TAU / (2 * math.pi)) - TAU * (y - f) ** 2) / 2


def log_noise_of_net(f: Tensor, y: Tensor) -> Tensor:
    mean, log_precision = f.chunk(2, -1)
    return (log_precision - math.log(2 * math.pi) - log_precision.exp() * (y - mean) ** 2) / 2


def log_poisson(f: Tensor, y: Tensor) -> Tensor:
    return y * f - f.exp() - torch.lgamma(y + 1)


REAL = {
    "Gaussian": (likelihoods.Gaussian(TAU), 2, log_gaussian),
    "HeteroscedasticGaussian": (likelihoods.HeteroscedasticGaussian(), 4, log_noise_of_net),
    "Poisson": (Counts(), 2, log_poisson),
}


def holes(*shape: int) -> Tensor:
    """Whole numbers of at least 0, of which some are NaN, and a whole row."""
    y = torch.poisson(torch.full(shape, 2.0, dtype=torch.float64))
    y[torch.rand(shape) < 0.3] = NAN
    y[1] = NAN
    return y


@pytest.mark.parametrize("kind", REAL)
def test_the_model_has_the_density_and_gradient_of_the_observed_elements(kind: str) -> None:
    """In a minibatch of M rows, including missing ones, both are multiplied by N / M."""
    base, outputs, log_density = REAL[kind]
    model = linear(likelihoods.Missing(base), 3, outputs)
    x, y, w = torch.randn(7, 3).double(), holes(7, 2), torch.randn(outputs, 3).double().requires_grad_()
    conditioned = poutine.condition(model, {"weight": w})
    trace = poutine.trace(conditioned).get_trace(x, y, num_data=21)
    trace.compute_log_prob()
    got = trace.nodes["y"]["log_prob_sum"]
    seen = ~y.isnan()
    want = 21 / 7 * log_density(x @ w.T, y.nan_to_num(0.0))[seen].sum()
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(value, w, retain_graph=True)[0] for value in (got, want)]
    torch.testing.assert_close(*grads)
    assert bool(grads[0].isfinite().all())


@pytest.mark.parametrize("tokens", [(), (5,)], ids=["rows", "tokens"])
def test_missing_labels_are_those_of_cross_entropy(tokens: tuple[int, ...]) -> None:
    model = linear(likelihoods.Missing(likelihoods.Categorical(), -100), 3, 4)
    x, y = torch.randn(8, *tokens, 3).double(), torch.randint(4, (8, *tokens))
    y[torch.rand(y.shape) < 0.4] = -100
    y[0] = -100
    w = torch.randn(4, 3).double().requires_grad_()
    trace = poutine.trace(poutine.condition(model, {"weight": w})).get_trace(x, y)
    trace.compute_log_prob()
    got = trace.nodes["y"]["log_prob_sum"]
    want = -F.cross_entropy((x @ w.T).flatten(0, -2), y.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(value, w, retain_graph=True)[0] for value in (got, want)))


@pytest.mark.parametrize("estimator", ["shared", "local", "per_example"])
def test_a_missing_row_changes_no_gradient(estimator: Any) -> None:
    """For any x of the missing row: the noise of the other rows stays the same, and its y, NaN, has no effect."""
    model = linear(likelihoods.Missing(likelihoods.Gaussian(TAU)))
    x, y = torch.randn(6, 2).double(), torch.randn(6, 1).double()
    y[4] = NAN
    other = x.clone()
    other[4] = 1e3
    settings: dict[str, Any] = {"steps": 3, "progress": False, "engine": "pyro", "estimator": estimator}
    run, other_run = (pyrodrop.fit(model, guides.MeanField(model), (inputs, y), **settings) for inputs in (x, other))  # type: ignore[arg-type]
    torch.testing.assert_close(run.history, other_run.history)
    assert bool(run.history.isfinite().all())


def predicted() -> tuple[Any, Tensor, Tensor]:
    """A fit to y with missing elements, points and y there."""
    torch.manual_seed(2)
    x, y = torch.randn(9, 2).double(), holes(9, 2)
    model = linear(likelihoods.Missing(likelihoods.Gaussian(TAU)), 2, 2)
    run = pyrodrop.fit(model, guides.MeanField(model), (x, y), steps=2, engine="pyro", progress=False)
    return run, x, y


def test_log_density_is_that_of_the_observed_elements_of_each_row() -> None:
    run, x, y = predicted()
    p = run.predict(x, 20)
    each = stats.norm.logpdf(y.numpy(), p.f.numpy(), TAU**-0.5)
    rows = ~np.isnan(y.numpy()).all(1)
    want = special.logsumexp(np.nansum(each, 2), 0)[rows] - math.log(20)
    assert len(want) < 9
    np.testing.assert_allclose(p.log_density(y), want)
    np.testing.assert_allclose(p.log_density(pd.DataFrame(y.numpy())), want)  # type: ignore[arg-type]
    complete = y.nan_to_num(0.0)
    np.testing.assert_allclose(p.log_density(complete), p.distribution.log_prob(complete).logsumexp(0) - math.log(20))


def test_scores_are_those_of_the_observed_elements() -> None:
    run, x, y = predicted()
    p = run.predict(x, 20)
    got, seen = metrics.regression_scores(p, y), ~y.isnan()
    mean, draws, observed = p.mean[seen].numpy(), p.sample_y(1000)[:, seen].numpy(), y[seen].numpy()
    assert got["log_density"] == pytest.approx(float(p.log_density(y).mean()))
    assert got["rmse"] == pytest.approx(np.sqrt(np.mean((mean - observed) ** 2)))
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    assert got["width_95"] == pytest.approx(np.mean(high - low))
    exact = stats.norm.cdf(observed, p.f[:, seen].numpy(), TAU**-0.5).mean(0)
    assert got["coverage_50"] == pytest.approx(np.mean(np.abs(exact - 0.5) <= 0.25))
    spread = np.abs(draws[:, None] - draws[None]).mean((0, 1))
    assert got["crps"] == pytest.approx(np.mean(np.abs(draws - observed).mean(0) - spread / 2), rel=1e-6)
    assert got["sharpness"] == pytest.approx(float(p.variance[seen].mean().sqrt()))
    with pytest.raises(ValueError, match="finite"):
        p.cdf(y)


def test_a_learned_precision_starts_at_the_variance_of_the_observed() -> None:
    likelihood = likelihoods.Missing(likelihoods.Gaussian())
    y = holes(50, 2)
    likelihood.start(y)
    base: Any = likelihood.likelihood
    np.testing.assert_allclose(base.precision.detach(), 1 / np.nanvar(y.numpy(), axis=0), rtol=1e-6)


def test_the_posterior_is_that_of_the_observed_rows() -> None:
    """For a linear model, in closed form: p(y, w) / p(w | y) is the evidence of the observed rows at any w."""
    x, y = torch.randn(20, 2).double(), torch.randn(20, 1).double()
    y[::3] = NAN
    model = linear(likelihoods.Missing(likelihoods.Gaussian(TAU)))
    seen = ~y[:, 0].isnan()
    known = x[seen].numpy()
    precision = TAU * known.T @ known + np.eye(2)
    posterior = stats.multivariate_normal(
        np.linalg.solve(precision, TAU * known.T @ y[seen, 0].numpy()), np.linalg.inv(precision)
    )
    evidence = stats.multivariate_normal(cov=known @ known.T + np.eye(len(known)) / TAU).logpdf(y[seen, 0])
    for w in torch.randn(3, 1, 2).double():
        joint = float(poutine.trace(poutine.condition(model, {"weight": w})).get_trace(x, y).log_prob_sum())
        assert joint - posterior.logpdf(w[0]) == pytest.approx(evidence, rel=1e-9)


def test_without_it_missing_values_are_refused_with_the_line_to_write() -> None:
    x, y = torch.randn(9, 2).double(), holes(9, 1)
    for call in (
        lambda model, data: pyrodrop.fit(model, guides.MeanField(model), data, steps=1),
        lambda model, data: pyrodrop.fit_replicates(model, guides.MeanField(model), data, count=2, steps=1),
        lambda model, data: pyrodrop.sample(model, data),
        lambda model, data: recipes.regressor(data),
    ):
        with pytest.raises(ValueError, match=r"y must be finite; got NaN in \d of 9 rows.*likelihoods.Missing\("):
            call(linear(likelihoods.Gaussian(TAU)), Dataset(x, y))
    with pytest.raises(ValueError, match="every column of y must have an observation; got NaN in all 9 rows"):
        Dataset(x, torch.cat([y, y.clone().fill_(NAN)], 1))


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (likelihoods.Missing(Joint()), SOME, "independent given f; got MultivariateNormal"),
        (likelihoods.Missing(Bounded()), SOME, "does not depend on f.*got Uniform"),
        (likelihoods.Missing(likelihoods.Gaussian(1.0), -9), SOME.nan_to_num(-9.0), "must be NaN for y of real"),
        (likelihoods.Missing(Counts(), 3), torch.full((4, 2), 3), "one that y cannot have under Counts; got 3"),
        (likelihoods.Missing(Counts(), -9), torch.full((4, 2), -9), "got 8 missing values"),
    ],
)  # fmt: skip
def test_what_cannot_be_left_out_is_refused(likelihood: Any, y: Tensor, message: str) -> None:
    model = linear(likelihood, 2, 2, dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        pyrodrop.fit(model, guides.MeanField(model), (torch.randn(4, 2), y), steps=1, progress=False)


def test_what_needs_every_observation_is_refused() -> None:
    from pyrodrop.analysis import log_density, loo

    labels = linear(likelihoods.Missing(likelihoods.Categorical(), -1), 2, 3, dtype=torch.float32)
    data = (torch.randn(3, 2), torch.tensor([0, -1, 2]))
    run = pyrodrop.fit(labels, guides.MeanField(labels), data, steps=1, engine="pyro", progress=False)
    for call in (
        lambda: loo(run),
        lambda: pyrodrop.sample(labels, data),
        lambda: pyrodrop.to_arviz(run, Dataset(*data)),
        lambda: log_density(run, data),
    ):
        with pytest.raises(ValueError, match=r"needs every observation; got a y with 1 missing of 3 values"):
            call()
