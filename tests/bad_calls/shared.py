"""One small problem and its fits, made once, for the calls of the tables."""

from __future__ import annotations

import functools
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess
from tests import small

N = 8
X = torch.linspace(-1, 1, 2 * N).reshape(N, 2)
Y = X.sum(1, keepdim=True).sin()
LABELS = torch.arange(N) % 3
MANY = torch.linspace(-1, 1, 40).reshape(20, 2)
QUICK: dict[str, Any] = {"steps": 2, "engine": "pyro", "progress": False}


def model(*widths: int, **more: Any) -> models.MLP:
    """A network of two inputs with a prior on all parameters."""
    torch.manual_seed(0)
    return small.mlp(*(widths or (2, 3, 1)), **{"bias_prior": priors.Gaussian(), **more})


def dropout_network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3))


def sparse() -> guides.SparseDropout:
    return guides.SparseDropout(model(bias_prior=None, prior=priors.ARD()))


def fit_with(guide: Any = None, data: Any = (X, Y), **settings: Any) -> pyrodrop.Fit:
    return pyrodrop.fit(mlp(), guides.Point(mlp()) if guide is None else guide, data, **{**QUICK, **settings})


@functools.cache
def mlp() -> models.MLP:
    return model()


@functools.cache
def fit() -> pyrodrop.Fit:
    return pyrodrop.fit(mlp(), guides.MeanField(mlp()), (X, Y), **QUICK)


@functools.cache
def classifier() -> pyrodrop.Fit:
    network = model(2, 3, 3, likelihood=likelihoods.Categorical())
    return pyrodrop.fit(network, guides.MeanField(network), (X, LABELS), **QUICK)


@functools.cache
def prediction() -> pyrodrop.Prediction:
    return fit().predict(X, 2)


@functools.cache
def of_classes() -> pyrodrop.Prediction:
    return classifier().predict(X, 2)


@functools.cache
def replicates() -> pyrodrop.Replicates:
    return pyrodrop.Replicates([fit(), fit()])


@functools.cache
def sampled() -> pyrodrop.Sampled:
    return pyrodrop.sample(mlp(), (X, Y), chains=4, draws=4, tune=100, engine="traced", max_steps=2, progress=False)


@functools.cache
def potential() -> pyrodrop.Potential:
    return pyrodrop.potential(mlp(), (X, Y), engine="traced")


@functools.cache
def process() -> GaussianProcess:
    return GaussianProcess((X, Y), "squared-exponential", learn=False, progress=False)


def plain(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A Pyro model whose y has shape [N]."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def its_guide(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros(2)), 1.0).to_event(1))
