"""Pyro's autoguides through `fit`: the model inside is the trained one, and two of one name do not share parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro import poutine
from pyro.infer import autoguide
from pyro.nn import PyroModule
from torch import nn

import pyrodrop
from pyrodrop import likelihoods, models, priors
from pyrodrop.modules import LocalModule

N = 40
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(5))
Y = X @ torch.tensor([[1.5], [-1.0]]) + 2 + 0.1 * torch.randn(N, 1, generator=torch.Generator().manual_seed(6))


def line(learned: bool = True, seed: int = 0) -> models.NetworkModel:
    """y = X w + b + noise: w has a prior, b and the precision are learned as point estimates."""
    torch.manual_seed(seed)
    return models.from_module(
        nn.Linear(2, 1), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0, learned=learned)
    )


def mode() -> tuple[torch.Tensor, torch.Tensor, float]:
    """w, its Laplace covariance and the precision at the joint mode, by alternating closed forms in float64."""
    x, y = X.double(), Y.double()
    w, b, precision = torch.zeros(2, 1).double(), y.mean(), 1.0
    for _ in range(500):
        w = torch.linalg.solve(precision * x.T @ x + torch.eye(2), precision * x.T @ (y - b))
        b = (y - x @ w).mean()
        precision = N / float((y - x @ w - b).square().sum())
    return w[:, 0], torch.linalg.inv(precision * x.T @ x + torch.eye(2)), precision


class Inside(nn.Module):
    """A guide of one's own that hands its work to an autoguide."""

    def __init__(self, auto: Any) -> None:
        super().__init__()
        self.auto = auto

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.auto(*args, **kwargs)


class InsidePyro(Inside, PyroModule):
    pass


class InsideLocal(Inside, LocalModule):
    pass


SETTINGS: dict[str, Any] = {"steps": 500, "lr": 0.1, "lr_schedule": lambda t: 1 - t / 500, "engine": "pyro"}


def inner(auto: Any) -> Any:
    """The model of an autoguide, without Pyro's handlers around it."""
    return auto.model.args[-1]


def test_the_laplace_approximation_is_at_the_trained_model() -> None:
    model = line()
    guide = autoguide.AutoLaplaceApproximation(model)
    run = pyrodrop.fit(model, guide, (X, Y), **SETTINGS)
    assert run.guide is guide
    assert run.model is model is inner(guide)
    w, covariance, precision = mode()
    assert float(run.model.likelihood.precision.detach()) == pytest.approx(precision, rel=0.02)
    laplace = run.guide.laplace_approximation(X, Y)
    torch.testing.assert_close(laplace.loc.detach().double(), w, atol=5e-3, rtol=0)
    tril = (laplace.scale[..., None] * laplace.scale_tril).detach().double()
    torch.testing.assert_close(tril @ tril.T, covariance, rtol=0.03, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda auto: auto,
        Inside,
        InsidePyro,
        InsideLocal,
        poutine.mask(mask=True),
        lambda auto: lambda *args, **kw: auto(*args, **kw),
    ],
    ids=["itself", "nn", "Pyro", "own", "handler", "function"],
)
def test_an_autoguide_is_trained_with_its_model(wrap: Any) -> None:
    model = line()
    auto = autoguide.AutoNormal(model, init_scale=0.01)
    run = pyrodrop.fit(model, wrap(auto), (X, Y), **SETTINGS)
    assert run.model is model is inner(auto)
    w, _, precision = mode()
    assert float(run.model.likelihood.precision.detach()) == pytest.approx(precision, rel=0.2)
    torch.testing.assert_close(auto.median(X)["weight"][0].detach().double(), w, atol=0.02, rtol=0)
    assert float((run.predict(X, 100).mean - Y).square().mean().sqrt()) < 0.15


def test_what_cannot_be_trained_is_refused() -> None:
    model = line()
    with pytest.raises(
        ValueError, match="which must be the model to be trained; got an .* made with another NetworkModel"
    ):
        pyrodrop.fit(model, autoguide.AutoNormal(line(seed=1)), (X, Y), steps=1)
