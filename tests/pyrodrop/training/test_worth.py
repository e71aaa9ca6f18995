"""What a fit is worth beside predictors that need no training, against the same predictions made row by row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
import torch
from sklearn.datasets import make_moons

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.training.worth import LENGTHS, constant, extreme, left_out, spectra, varies

RATIOS, SLOPES = np.logspace(-6, 3, 28), np.logspace(-1, 1, 9)
GENERATOR = torch.Generator().manual_seed(0)
X = 20 * torch.rand(120, 1, generator=GENERATOR) - 10
SINE = 10 * torch.exp(-(X + 10) / 10) * torch.sin(1.5 * X) + torch.randn(X.shape, generator=GENERATOR)


def fitted(x: Any = X, y: Any = SINE, guide: Any = guides.MeanField, **options: Any) -> Any:
    model = models.MLP([x.shape[1], 20, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    settings: dict[str, Any] = {"steps": 200, "lr": 0.02, "engine": "traced", "progress": False, **options}
    return pyrodrop.fit(model, guide(model), data.Dataset(x, y).standardized(), **settings)


def row_by_row(kernel: np.ndarray, y: np.ndarray, r: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean ``[n, D]`` and variance ``[n]`` of every row given the others: the conditional of a joint Gaussian."""
    n = len(y)
    means, variances = np.empty_like(y), np.empty(n)
    for i in range(n):
        rest = np.arange(n) != i
        gain = np.linalg.solve(kernel[np.ix_(rest, rest)] + r * np.eye(n - 1), kernel[rest, i])
        means[i], variances[i] = gain @ y[rest], kernel[i, i] + r - gain @ kernel[rest, i]
    return means, variances


def best_density(kernels: list[np.ndarray], y: np.ndarray) -> float:
    """The largest mean log density of rows of real y over kernels and ratios."""
    standard = (y - y.mean(0)) / y.std(0)
    densities = []
    for kernel in kernels:
        for r in RATIOS:
            mean, variance = row_by_row(kernel, standard, r)
            s = ((standard - mean) ** 2 / variance[:, None]).mean(0)
            sd = np.sqrt(s * variance[:, None]) * y.std(0)
            densities.append(scipy.stats.norm.logpdf(y, mean * y.std(0) + y.mean(0), sd).sum(1).mean())
    return max(densities)


def rbf(x: np.ndarray) -> list[np.ndarray]:
    x = (x - x.mean(0)) / x.std(0)
    square = ((x[:, None] - x) ** 2).mean(-1)
    return [1 + np.exp(-square / (2 * length**2)) for length in LENGTHS]


@pytest.mark.parametrize("columns", [1, 2])
def test_a_process_and_ridge_regression_predict_every_row_from_the_others(columns: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(25, 2)) * [1, 100]
    y = np.stack([np.sin(2 * x[:, 0]), 3 + x[:, 1]], 1)[:, :columns] + 0.3 * rng.normal(size=(25, columns))
    ours = left_out(spectra([torch.tensor(x)], LENGTHS), torch.tensor(y))
    assert float(ours.mean()) == pytest.approx(best_density(rbf(x), y), rel=1e-6)
    phi = (x - x.mean(0)) / x.std(0) / math.sqrt(2)
    ridge = left_out(spectra([torch.tensor(x)], (None,)), torch.tensor(y))
    assert float(ridge.mean()) == pytest.approx(best_density([1 + phi @ phi.T], y), rel=1e-6)
    wide = rng.normal(size=(20, 30))
    phi = (wide - wide.mean(0)) / wide.std(0) / math.sqrt(30)
    ridge = left_out(spectra([torch.tensor(wide)], (None,)), torch.tensor(y[:20]))
    assert float(ridge.mean()) == pytest.approx(best_density([1 + phi @ phi.T], y[:20]), rel=1e-6)


def test_labels_are_predicted_from_those_of_the_others() -> None:
    x, labels = make_moons(30, noise=0.3, random_state=0)
    one_hot = np.eye(2)[labels]
    densities = []
    for kernel in rbf(x):
        means = [row_by_row(kernel, one_hot - one_hot.mean(0), r)[0] for r in RATIOS]
        mean = min(means, key=lambda m: ((one_hot - one_hot.mean(0) - m) ** 2).mean())
        densities += [scipy.special.log_softmax(b * mean, 1)[range(30), labels].mean() for b in SLOPES]
    assert float(left_out(spectra([torch.tensor(x)], LENGTHS), torch.tensor(labels)).mean()) == pytest.approx(
        max(densities), rel=1e-6
    )


def test_values_far_out_and_noise_that_varies_are_those_of_rows_left_out() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(-2, 2, (61, 1))
    y = np.sin(x) + np.where(x > 0, 0.5, 0.02) * rng.normal(size=x.shape)
    assert extreme(torch.tensor(y)) == pytest.approx(
        np.abs(y - np.median(y)).max() / scipy.stats.median_abs_deviation(y, scale="normal")[0], rel=1e-4
    )
    standard, best = (y - y.mean()) / y.std(), (-np.inf, y)
    for kernel in rbf(x):
        for r in RATIOS:
            mean, variance = row_by_row(kernel, standard, r)
            s = ((standard - mean) ** 2 / variance[:, None]).mean()
            sd = np.sqrt(s * variance[:, None])
            density = scipy.stats.norm.logpdf(standard, mean, sd).mean()
            best = max(best, (density, (standard - mean) / sd), key=lambda pair: pair[0])
    phi = (x - x.mean(0)) / x.std(0)
    logs = np.log(best[1] ** 2)
    gain = (
        best_density([1 + phi @ phi.T, *rbf(x)[-4:]], logs)
        - scipy.stats.norm.logpdf(logs, logs.mean(), logs.std()).mean()
    )
    assert varies(spectra([torch.tensor(x)], (None, *LENGTHS)), torch.tensor(y)) == pytest.approx(gain, rel=1e-3)
    assert gain > 0.2
    assert extreme(torch.tensor([0.0, 0.0, 0.0, 5.0])) is None
    flat, sides = torch.zeros(40, 1), torch.tensor([-1.0, 1.0]).double().repeat(20)[:, None]
    assert abs(varies(spectra([flat], (None, *LENGTHS)), sides)) < 0.01, "errors of one size, but for rounding"


def test_constants_are_those_of_the_largest_likelihood() -> None:
    rng = np.random.default_rng(1)
    real, counts = rng.normal(3, 2, (50, 2)), rng.poisson(4, (50, 1))
    labels, yes = rng.integers(0, 3, 50), rng.integers(0, 2, (50, 2))
    share = np.bincount(labels) / 50
    cases: list[tuple[likelihoods.Likelihood, np.ndarray, np.ndarray]] = [
        (likelihoods.Gaussian(), real, scipy.stats.norm.logpdf(real, real.mean(0), real.std(0)).sum(1)),
        (likelihoods.HeteroscedasticGaussian(), real, scipy.stats.norm.logpdf(real, real.mean(0), real.std(0)).sum(1)),
        (likelihoods.Poisson(), counts, scipy.stats.poisson.logpmf(counts, counts.mean())[:, 0]),
        (likelihoods.Bernoulli(), yes, scipy.stats.bernoulli.logpmf(yes, yes.mean(0)).sum(1)),
        (likelihoods.Categorical(), labels, np.log(share)[labels]),
    ]
    for likelihood, y, expected in cases:
        density = constant(likelihood, torch.tensor(y))
        assert density is not None
        np.testing.assert_allclose(density.numpy(), expected, rtol=1e-6)
    same = torch.ones(5, 1, dtype=torch.float64)
    assert constant(likelihoods.Gaussian(), same) is None
    assert constant(likelihoods.StudentT(), torch.tensor(real)) is None


def test_a_fit_has_the_density_of_its_mixture_and_a_point_that_of_its_network() -> None:
    run = fitted(guide=guides.Point)
    layers = dict(run.model.network.named_parameters()) | {
        n: run.guide.posterior(n).mean for n in run.model.weight_sites()
    }
    free = {name: run.model.free[name] for name in run.model.free}
    w = {**layers, **free}
    h = torch.tanh((X - X.mean()) / X.std(correction=0) @ w["layers.0.weight"].T + w["layers.0.bias"])
    f = (h @ w["layers.1.weight"].T + w["layers.1.bias"]) * SINE.std(correction=0) + SINE.mean()
    density = dist.Normal(f, run.model.likelihood.precision.rsqrt()).log_prob(SINE).detach()
    worth = run.worth
    assert worth is not None
    assert worth.fit == pytest.approx(float(density.mean()), rel=1e-4)
    wide = fitted(guide=lambda m: guides.BernoulliDropout(m, 0.2))
    each = wide.predict(X, 4000, seed=1).log_density(SINE)
    assert wide.worth.fit == pytest.approx(float(each.mean()), abs=0.1)  # 16 draws


def test_a_last_layer_is_refitted_to_features_at_the_means_or_the_first_weights() -> None:
    run = fitted(x=X[:40], y=SINE[:40], steps=120)
    x, start = (X[:40] - X[:40].mean()) / X[:40].std(correction=0), run.model.weight_sites()["layers.0.weight"]
    kernels = []
    for weight in (start, run.guide.posterior("layers.0.weight").mean):
        h = torch.tanh(x @ weight.T + run.model.free["layers.0.bias"]).detach().double().numpy()
        phi = (h - h.mean(0)) / h.std(0) / math.sqrt(20)
        kernels.append(1 + phi @ phi.T)
    assert run.worth.point == pytest.approx(best_density(kernels, SINE[:40].double().numpy()), rel=1e-3)


def test_measuring_it_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    with_worth, state = fitted(), torch.random.get_rng_state()
    assert with_worth.settings["worth"]["fit"] == with_worth.worth.fit
    monkeypatch.setattr("pyrodrop.training.fit.judge", lambda fit: None)
    torch.manual_seed(3)
    without = fitted()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert "worth" not in without.settings
    assert torch.equal(with_worth.history, without.history)
    assert torch.equal(with_worth.predict(X, 5).f, without.predict(X, 5).f)


def test_what_has_no_such_number_has_none() -> None:
    def program(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=None if y is None else y[:, 0])

    def guide(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        pyro.sample("slope", dist.Normal(pyro.param("m", torch.tensor(0.0)), 1.0))

    pyro.clear_param_store()
    assert pyrodrop.fit(program, guide, {"x": X, "y": SINE}, steps=120, progress=False).worth is None
    settings: dict[str, Any] = {"steps": 120, "engine": "traced", "progress": False}
    model = models.MLP([1, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    flat = pyrodrop.fit(model, guides.MeanField(model), (X, torch.ones_like(X)), **settings).worth
    assert flat is not None
    assert flat.constant is flat.ridge is flat.point is None


def test_rows_that_are_read_while_training_are_judged_by_their_sample() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, SINE), batch_size=60)
    model = models.MLP([1, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    worth = pyrodrop.fit(model, guides.MeanField(model), loader, steps=120, engine="traced", progress=False).worth
    assert worth is not None
    first = SINE[:60].double().numpy()
    assert worth.constant == pytest.approx(scipy.stats.norm.logpdf(first, first.mean(), first.std()).mean(), rel=1e-6)
