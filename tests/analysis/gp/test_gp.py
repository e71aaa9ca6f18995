"""Gaussian-process baselines, against plain linear algebra and the reference fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy import stats
from tqdm import tqdm

from pyrodrop import data
from pyrodrop.analysis import gp
from pyrodrop.analysis.gp import GaussianProcess, Inducing, Start, squared_exponential
from pyrodrop.analysis.gp.inducing import Sparse
from pyrodrop.analysis.gp.latent import chosen_inference
from pyrodrop.data import Dataset

X = torch.linspace(0, 6, 40)[:, None]
Y = torch.sin(2 * X) + 0.1 * torch.randn(40, 1, generator=torch.Generator().manual_seed(0))


def covariance(a: torch.Tensor, b: torch.Tensor, s2: float, length: float) -> torch.Tensor:
    return s2 * torch.exp(-((a - b.T) ** 2) / (2 * length**2))


def test_draws_have_the_covariance_of_linear_algebra(float64: None) -> None:
    """At the fitted hyperparameters: Rasmussen & Williams (2006), eq. 2.26, with a dense solve."""
    process = GaussianProcess(Dataset(X, Y), squared_exponential)
    h = process.hyperparameters
    s2, length = h["covar_module.outputscale"], h["covar_module.base_kernel.lengthscale"]
    x, points = X.double(), torch.tensor([[-1.0], [2.2], [9.0]])
    scale = x.std(correction=0)
    gram = covariance(x, x, s2, scale * length) + h["likelihood.noise_covar.noise"] * torch.eye(40)
    cross = covariance(points, x, s2, scale * length)
    cov = covariance(points, points, s2, scale * length) - cross @ torch.linalg.solve(gram, cross.T)
    variance = float(Y.double().var(correction=0))
    got = process.predict(points, 20_000).f[..., 0].T.cov()
    torch.testing.assert_close(got, variance * cov, rtol=0, atol=0.04 * variance)  # 5 s.e.


def test_reference_fit_of_the_papers_series(data_folder: Path) -> None:
    """The reference grid's best is l = .0271, s^2 = 1, noise .01 at evidence -67.88; a proper search finds no worse."""
    series = data.gal2016("co2")
    process = GaussianProcess(series.train, squared_exponential)
    assert process.log_evidence > -67.88
    assert process.hyperparameters["covar_module.base_kernel.lengthscale"] == pytest.approx(0.0271, rel=0.15)
    assert process.hyperparameters["likelihood.noise_covar.noise"] == pytest.approx(0.01, rel=0.15)
    far = process.predict(torch.linspace(2.0, 3.72, 20)[:, None], 10)
    assert float(far.mean.abs().max()) < 1e-3
    torch.testing.assert_close(
        far.sd, torch.full_like(far.sd, math.sqrt(process.prior_sd**2 + process.noise_sd**2)), rtol=1e-4, atol=0
    )


def se(r: np.ndarray) -> np.ndarray:
    return np.exp(-(r**2) / 2)


def matern(order: int) -> Callable[[np.ndarray], np.ndarray]:
    """The three closed forms, of nu = order + 1/2."""

    def of(r: np.ndarray) -> np.ndarray:
        a = math.sqrt(2 * order + 1) * r
        return np.exp(-a) * (1, 1 + a, 1 + a + a**2 / 3)[order]

    return of


SHAPES = {"squared-exponential": se, "matern-1/2": matern(0), "matern-3/2": matern(1), "matern-5/2": matern(2)}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", gp.KERNELS)
def test_exact_inference_is_a_cholesky_factorisation(name: str) -> None:
    """Two inputs with a length scale each: mean, variance and evidence to 1e-6 of numpy's."""
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(60, 2)), rng.normal(size=(15, 2))
    y = np.sin(2 * x[:, :1]) + 0.3 * x[:, 1:] + 0.1 * rng.normal(size=(60, 1))
    fitted = GaussianProcess((torch.tensor(x), torch.tensor(y)), name)
    h = fitted.hyperparameters
    s2, lengths = h["covar_module.outputscale"], np.array(h["covar_module.base_kernel.lengthscale"])
    assert lengths.shape == (2,)
    noise = h["likelihood.noise_covar.noise"]

    xs, news, ys = (x - x.mean(0)) / x.std(0), (new - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()

    def k(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        distance = np.sqrt((((a[:, None] - b[None]) / lengths) ** 2).sum(-1))
        return s2 * SHAPES[name](distance)  # type: ignore[no-any-return]

    factor = np.linalg.cholesky(k(xs, xs) + noise * np.eye(60))
    white, cross = np.linalg.solve(factor, ys), np.linalg.solve(factor, k(xs, news))
    mean = y.mean() + y.std() * cross.T @ white
    variance = y.std() ** 2 * (s2 - (cross**2).sum(0))
    evidence = -0.5 * (white**2).sum() - np.log(np.diag(factor)).sum() - 30 * math.log(2 * math.pi)
    got = fitted.predict(torch.tensor(new), 2)
    np.testing.assert_allclose(got.mean, mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got.spread[:, 0] ** 2, variance, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got.variance[:, 0], variance + y.std() ** 2 * noise, rtol=0, atol=1e-6)
    assert fitted.log_evidence == pytest.approx(evidence, abs=1e-6)
    assert fitted.evidence_kind == "exact"


def test_log_density_is_that_of_the_normal_distribution() -> None:
    process = GaussianProcess(Dataset(X, Y), squared_exponential)
    new = (torch.tensor([[0.33], [4.0], [9.0]]), torch.tensor([[0.5], [1.0], [0.0]]))
    distribution = process.predict(new[0], 2)
    expected = stats.norm.logpdf(new[1][:, 0], distribution.mean[:, 0], distribution.sd[:, 0])
    np.testing.assert_allclose(process.log_density(new), expected, rtol=1e-6)


def test_independent_draws_have_the_marginals_of_joint_ones() -> None:
    process = GaussianProcess(Dataset(X, Y), squared_exponential)
    new = torch.linspace(5, 8, 1500)[:, None]  # more than one chunk
    joint, alone = process.predict(new[::100], 2), process.predict(new, 4000, joint=False)
    assert (joint.joint, alone.joint) == (True, False)
    torch.testing.assert_close(alone.mean[::100], joint.mean)
    torch.testing.assert_close(alone.sd[::100], joint.sd)
    spread = alone.f.std(0)[:, 0] / alone.spread[:, 0]
    assert float((spread - 1).abs().max()) < 5 / math.sqrt(2 * 4000)  # 5 s.e., the largest of 1500
    neighbours = torch.corrcoef(alone.f[:, -2:, 0].T)[0, 1]
    assert abs(float(neighbours)) < 5 / math.sqrt(4000)


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_variances_of_the_networks_kernel_are_learned(activation: str) -> None:
    """ML-II ends at a maximum: the evidence falls when a variance is moved, which numpy's Cholesky judges."""
    start = Start(gp.NetworkKernel(activation, [1.0] * 3, [1.0] * 3), noise=0.05)
    process = GaussianProcess(Dataset(X, Y), start)
    before = GaussianProcess(Dataset(X, Y), start, learn=False)
    assert process.log_evidence > before.log_evidence + 5
    h = process.hyperparameters
    weights, biases = (h[f"covar_module.{name}"] for name in ("weight_variance", "bias_variance"))
    noise = h["likelihood.noise_covar.noise"]
    x, y = process.inputs(X.double()), process.targets(Y.double())

    def evidence(weights: list[float], biases: list[float], noise: float) -> float:
        gram = gp.NetworkKernel(activation, weights, biases)(x).to_dense().detach().numpy() + noise * np.eye(40)
        factor = np.linalg.cholesky(gram)
        white = np.linalg.solve(factor, y.numpy())
        return float(-0.5 * (white**2).sum() - np.log(np.diag(factor)).sum() - 20 * math.log(2 * math.pi))

    best = evidence(weights, biases, noise)
    assert best == pytest.approx(process.log_evidence, abs=1e-5)
    for factor in (0.8, 1.25):
        assert evidence(weights, biases, noise * factor) < best
        for i in range(3):
            assert evidence([w * factor if i == j else w for j, w in enumerate(weights)], biases, noise) < best + 1e-4
            assert evidence(weights, [b * factor if i == j else b for j, b in enumerate(biases)], noise) < best + 1e-4


@pytest.mark.more
def test_all_points_as_inducing_points_are_exact_inference() -> None:
    """Same hyperparameters: mean and sd to 1e-3 of the prior's sd, the bound to .01 nats (GPyTorch's jitter is 1e-6)."""
    kernel = ScaleKernel(RBFKernel())
    exact = GaussianProcess(Dataset(X, Y), Start(kernel, 0.05), learn=False)
    settings = Inducing(points=40, steps=200, natural_lr=0.2)
    sparse = GaussianProcess(Dataset(X, Y), Start(kernel, 0.05), learn=False, inducing=settings)
    new = torch.linspace(-1, 8, 50)[:, None]
    a, b = exact.predict(new, 2), sparse.predict(new, 20_000)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-3 * exact.prior_sd)
    torch.testing.assert_close(a.spread, b.spread, rtol=0, atol=1e-3 * exact.prior_sd)
    torch.testing.assert_close(b.f.std(0), b.spread, rtol=5 / math.sqrt(40_000), atol=1e-3 * exact.prior_sd)
    assert exact.log_evidence - 0.01 < sparse.log_evidence < exact.log_evidence + 1e-6
    assert sparse.evidence_kind == "lower bound"
    torch.testing.assert_close(sparse.log_density((X, Y)), exact.log_density((X, Y)), rtol=0, atol=1e-3)


@pytest.mark.more
def test_few_inducing_points_bound_the_evidence_and_learn() -> None:
    """From a poor start, 12 points and minibatches of 20: near the exact hyperparameters, the bound below the evidence."""
    exact = GaussianProcess(Dataset(X, Y), Start(ScaleKernel(RBFKernel()), 0.3))
    x, y = exact.inputs(X.double()), exact.targets(Y.double()).T
    sparse = Sparse(x, y, ScaleKernel(RBFKernel()), 0.3, Inducing(points=12, steps=500, batch_size=20, lr=0.04))
    bound = sparse.maximise(tqdm(disable=True), learn=True)
    assert exact.log_evidence - 3 < bound < exact.log_evidence
    assert float(sparse.noise) ** 0.5 == pytest.approx(exact.noise_sd / float(exact.targets.scale), rel=0.2)
    new = torch.linspace(0, 6, 30)[:, None]
    mean = exact.targets.inverse(sparse.marginals(exact.inputs(new.double()))[0].T)
    torch.testing.assert_close(mean, exact.predict(new, 2).mean, rtol=0, atol=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["squared-exponential", Start(gp.NetworkKernel("erf", [3.0] * 3, [3.0] * 3), 0.1)])
def test_inducing_points_begin_on_a_subset(kernel: str | Start) -> None:
    """600 observations, more than the subset: as good as exact inference, the same for one seed."""
    x = 6 * torch.rand(600, 1)
    y = torch.sin(2 * x) + 0.1 * torch.randn(600, 1)
    settings = Inducing(points=20, steps=40)
    sparse = GaussianProcess((x, y), kernel, inducing=settings)
    assert sparse.noise_sd == pytest.approx(0.1, rel=0.1)
    new = torch.linspace(0, 6, 100)[:, None]
    assert float((sparse.predict(new, 2).mean - torch.sin(2 * new)).abs().max()) < 0.06
    again = GaussianProcess((x, y), kernel, inducing=settings)
    assert again.log_evidence == sparse.log_evidence


def test_inference_is_chosen_by_size() -> None:
    assert chosen_inference(10_000, None) is None
    assert chosen_inference(10_001, None) == Inducing(points=500)
    assert chosen_inference(50, 7) == Inducing(points=7)
