"""Fixtures of the tests of the analysis: small fits, and a regression whose every answer is known."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset

SETTINGS: dict[str, Any] = {"steps": 60, "lr": 2e-2, "progress": False}


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    """Figures are pyplot's; none is left open."""
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="session")
def small() -> Any:
    """The functions of this file by name: ``small.waves()``."""
    return types.SimpleNamespace(
        waves=waves, classes=classes, regressor=regressor, classifier=classifier, fitted=fitted, dropout=dropout,
        conjugate=conjugate,
    )  # fmt: skip


def waves(n: int = 40, seed: int = 0) -> Dataset:
    """A wave in units far from standard: y near 300."""
    noise = torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))
    x = torch.linspace(1950, 1960, n)[:, None]
    return Dataset(x, 300 + 5 * torch.sin(x) + noise).standardized()


def classes(n: int = 45, seed: int = 0) -> Dataset:
    """Three classes in the plane."""
    y = torch.arange(n) % 3
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)) + 2 * torch.eye(3)[y][:, :2]
    return Dataset(x, y)


def regressor(likelihood: Any = None, **options: Any) -> models.NetworkModel:
    likelihood = likelihood or likelihoods.Gaussian(1.0, learned=True)
    return models.MLP([1, 16, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihood, **options)


def classifier() -> models.NetworkModel:
    return models.MLP([2, 12, 3], prior=priors.Gaussian(), likelihood=likelihoods.Categorical())


def fitted(make: Callable[[Any], Any], model: Any = None, data: Dataset | None = None, **options: Any) -> Any:
    model = model or regressor()
    train = pyrodrop.fit_replicates if "count" in options else pyrodrop.fit
    return train(model, make(model), waves() if data is None else data, **SETTINGS | options)


def dropout(model: Any) -> guides.BernoulliDropout:
    return guides.BernoulliDropout(model, 0.1, mask_input=False)


def conjugate(scale: float, n: int = 60, d: int = 4, tau: float = 1.0) -> tuple[pyrodrop.Fit, Tensor]:
    """Bayesian linear regression with orthogonal columns, so that its posterior is a mean field; q has its means and
    `scale` times its variances. With it the exact ln p(y_n | the others), ``[N]``, by solving each of the N problems."""
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(n, d, dtype=torch.float64))[0] * math.sqrt(n)
    y = x @ torch.randn(d, dtype=torch.float64) + torch.randn(n, dtype=torch.float64) / math.sqrt(tau)
    precision, eye = tau * n + 1.0, torch.eye(d, dtype=torch.float64)
    exact = []
    for i in range(n):
        others = torch.arange(n) != i
        a = tau * x[others].T @ x[others] + eye
        mean = x[i] @ torch.linalg.solve(a, tau * x[others].T @ y[others])
        variance = x[i] @ torch.linalg.solve(a, x[i]) + 1 / tau
        exact.append(torch.distributions.Normal(mean, variance.sqrt()).log_prob(y[i]))
    net = nn.Linear(d, 1, bias=False)
    model = models.from_module(net, prior=priors.Gaussian(1.0), likelihood=likelihoods.Gaussian(tau)).double()
    guide = guides.MeanField(model).double()
    with torch.no_grad():
        guide.loc["weight"].copy_((tau * x.T @ y / precision)[None])
        guide.log_variance["weight"].fill_(math.log(scale / precision))
    return pyrodrop.Fit(model, guide, Dataset(x, y[:, None]), torch.zeros(1, 3), {}), torch.stack(exact)
