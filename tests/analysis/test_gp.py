"""Gaussian-process baselines, against plain linear algebra and the reference fit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pyrodrop import data
from pyrodrop.analysis.gp import GaussianProcess, squared_exponential, trend_and_season
from pyrodrop.data import Dataset

X = torch.linspace(0, 6, 40)[:, None]
Y = torch.sin(2 * X) + 0.1 * torch.randn(40, 1, generator=torch.Generator().manual_seed(0))


def covariance(a: torch.Tensor, b: torch.Tensor, s2: float, length: float) -> torch.Tensor:
    return s2 * torch.exp(-((a - b.T) ** 2) / (2 * length**2))


def test_posterior_and_evidence_are_those_of_linear_algebra(float64: None) -> None:
    """At the fitted hyperparameters: Rasmussen & Williams (2006), eq. 2.25, 2.26 and 2.30, with a dense solve."""
    process = GaussianProcess(Dataset(X, Y), squared_exponential)
    h = process.hyperparameters
    s2, length = h["covar_module.outputscale"], h["covar_module.base_kernel.lengthscale"]
    noise = h["likelihood.noise_covar.noise"]
    loc, scale = Y.double().mean(), Y.double().std(correction=0)
    x, y = (X.double() - X.double().mean()) / X.double().std(correction=0), (Y.double() - loc) / scale
    points = torch.tensor([[-1.0], [2.2], [9.0]])
    at = (points - X.double().mean()) / X.double().std(correction=0)
    gram = covariance(x, x, s2, length) + noise * torch.eye(40)
    cross = covariance(at, x, s2, length)
    mean = loc + scale * cross @ torch.linalg.solve(gram, y)
    cov = covariance(at, at, s2, length) - cross @ torch.linalg.solve(gram, cross.T)
    got = process.predict(points, 20_000)
    torch.testing.assert_close(got.mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got.variance[:, 0], scale**2 * (cov.diagonal() + noise), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(got.spread[:, 0] ** 2, scale**2 * cov.diagonal(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(got.f[..., 0].T.cov(), scale**2 * cov, rtol=0, atol=0.04 * float(scale**2))  # 5 s.e.
    evidence = torch.distributions.MultivariateNormal(torch.zeros(40), gram).log_prob(y[:, 0])
    assert process.log_evidence == pytest.approx(float(evidence), abs=1e-4)


def test_fitted_hyperparameters_are_a_maximum(float64: None) -> None:
    process = GaussianProcess(Dataset(X, Y), squared_exponential)
    h = process.hyperparameters
    best = [
        h[k]
        for k in ("covar_module.outputscale", "covar_module.base_kernel.lengthscale", "likelihood.noise_covar.noise")
    ]
    x = (X.double() - X.double().mean()) / X.double().std(correction=0)
    y = (Y.double() - Y.double().mean()) / Y.double().std(correction=0)

    def evidence(values: list[float]) -> float:
        gram = covariance(x, x, values[0], values[1]) + values[2] * torch.eye(40)
        return float(torch.distributions.MultivariateNormal(torch.zeros(40), gram).log_prob(y[:, 0]))

    top = evidence(best)
    for index in range(3):
        for factor in (0.9, 1.1):
            other = [value * (factor if i == index else 1) for i, value in enumerate(best)]
            assert evidence(other) < top


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


def test_a_season_is_carried_into_the_future() -> None:
    x = torch.arange(0, 8, 1 / 12)[:, None]
    y = 0.5 * x + torch.sin(2 * torch.pi * x)
    split = Dataset(x[:60], y[:60]).standardized()
    assert split.inputs is not None
    process = GaussianProcess(split, trend_and_season(1 / float(split.inputs.scale)))
    assert float((process.predict(x[60:], 10).mean - y[60:]).abs().max()) < 0.4


def test_data_are_left_as_they_were() -> None:
    co2 = data.mauna_loa()
    before = co2.train.inputs.scale.dtype  # type: ignore[union-attr]
    GaussianProcess(
        Dataset(co2.train.x[:40], co2.train.y[:40], inputs=co2.train.inputs, targets=co2.train.targets),
        squared_exponential,
    )
    assert co2.train.inputs.scale.dtype == before  # type: ignore[union-attr]
