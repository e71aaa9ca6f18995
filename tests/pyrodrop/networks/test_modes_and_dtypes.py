"""Training within no_grad and inference_mode, losses in the dtype of the parameters, and numbers that run away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

MODES = [torch.no_grad, torch.inference_mode]
X = torch.linspace(-1, 1, 20)[:, None]


def parts(dtype: torch.dtype = torch.float32, **likelihood: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = models.MLP(
        [1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(**{"precision": 10.0, **likelihood})
    )
    return model.to(dtype), guides.MeanField(model).to(dtype)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 20)[:, None]
    return x, x**2


def stepwise(model: Any, guide: Any, xy: Any) -> torch.Tensor:
    training = pyrodrop.Training(model, guide, xy, engine="pyro", batch_size=7)
    training.step()
    training.advance(2)
    return training.fit.history


WAYS: dict[str, Callable[[Any, Any, Any], torch.Tensor]] = {
    "fit": lambda *all: pyrodrop.fit(*all, steps=3, engine="pyro", batch_size=7).history,
    "whole data": lambda *all: pyrodrop.fit(*all, steps=3, engine="traced").history,
    "replicates": lambda *all: pyrodrop.fit_replicates(*all, count=2, steps=3, engine="traced")[1].history,
    "Training": stepwise,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_same_within_no_grad_and_inference_mode(way: str) -> None:
    """Around the call alone, and around what makes model, guide and data."""
    want = WAYS[way](*parts(), data())
    for mode in MODES:
        made = (*parts(), data())
        with mode():
            assert torch.equal(WAYS[way](*made), want)
            assert torch.equal(WAYS[way](*parts(), data()), want)
            assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
            assert not torch.is_grad_enabled()


def test_a_fit_of_inference_mode_can_be_used_outside() -> None:
    with torch.inference_mode():
        fit = pyrodrop.fit(*parts(), data(), steps=3, engine="pyro")
        inside = (fit.elbo(3).value, fit.predict(X, 3).f.sum().item())
    outside = (fit.elbo(3).value, fit.predict(X, 3).f.sum().item())
    assert inside == outside
    assert not fit.history.is_inference()
    fit.guide.loc["layers.0.weight"].sum().backward()  # type: ignore[attr-defined]


def test_data_of_inference_mode_are_trained_on() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        w = pyro.sample("w", pyro.distributions.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", pyro.distributions.Normal(w * x[:, 0], 1.0), obs=y[:, 0])

    def guide(x: torch.Tensor, y: torch.Tensor) -> None:
        pyro.sample("w", pyro.distributions.Normal(pyro.param("m", torch.tensor(0.0)), 1.0))

    with torch.inference_mode():  # data that the model multiplies by a parameter without a copy
        made = data()
    pyrodrop.fit(model, guide, made, steps=1)


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_losses_have_the_dtype_of_the_parameters(engine: Any, tmp_path: Path) -> None:
    """In float64 to its precision: the nll at a point is the formula in float64, and a checkpoint keeps it."""
    x, y = (value.double() for value in data())
    model, _ = parts(torch.float64)
    guide = guides.Point(model).double()
    file = tmp_path / "state"
    for steps in (2, 4):
        fit = pyrodrop.fit(model, guide, (x, y), steps=steps, engine=engine, checkpoint=file)
    whole = pyrodrop.fit(model, guide, (x, y), steps=4, engine=engine)
    assert fit.history.dtype == torch.float64
    assert torch.equal(fit.history, whole.history)
    with torch.no_grad():
        weights, biases = list(model.weight_sites().values()), [model.free[name] for name in model.free]
        hidden = torch.relu(x @ weights[0].T + biases[0])
        residual = y - (hidden @ weights[1].T + biases[1])
    nll = (0.5 * 10 * residual**2 + 0.5 * torch.log(torch.tensor(2 * torch.pi / 10, dtype=torch.float64))).sum()
    torch.testing.assert_close(fit.history[0, 0], nll, rtol=1e-13, atol=0)
    assert pyrodrop.fit(*parts(), data(), steps=1, engine=engine).history.dtype == torch.float32
    many = pyrodrop.fit_replicates(model, guide, (x, y), count=2, steps=2, engine="traced")
    assert many[0].history.dtype == torch.float64
