"""Recorded steps of `fit` where the user's code changes something while training, against ``engine="pyro"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.linspace(-1, 1, 60).reshape(20, 3)
Y = X[:, :1].sin()


def fitted(engine: Any, change: Callable[[Any], object], at: int = 10, steps: int = 60, **options: Any) -> pyrodrop.Fit:
    """A network whose last layer is inferred; `change` gets its model after epoch `at` of four minibatches each."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    prior = {"2.*": priors.Gaussian(), "*": None}
    model = models.from_module(network, prior=prior, likelihood=likelihoods.Gaussian(10.0))

    def after_epoch(fit: pyrodrop.Fit, epoch: float) -> None:
        if epoch == at:
            change(fit.model)

    data = {"steps": steps, "lr": 0.01, "batch_size": 5, "seed": 0, "progress": False, **options}
    return pyrodrop.fit(model, guides.MeanField(model), (X, Y), engine=engine, after_epoch=after_epoch, **data)


def body(model: Any) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if ".0." in name or name.startswith("0.")}


def freeze(model: Any) -> None:
    for parameter in body(model).values():
        parameter.requires_grad_(False)


def hook(model: Any) -> None:
    next(iter(body(model).values())).register_hook(lambda gradient: 0.1 * gradient)


def move(model: Any) -> None:
    """As for averages of weights: values in other memory."""
    parameters = list(body(model).values())
    nn.utils.vector_to_parameters(torch.ones(sum(each.numel() for each in parameters)), parameters)


def clamp(model: Any) -> None:
    with torch.no_grad():
        next(iter(body(model).values())).clamp_(-0.1, 0.1)


def evaluate(model: Any) -> None:
    next(module for module in model.modules() if isinstance(module, nn.Tanh)).register_forward_hook(
        lambda module, given, result: 0.5 * result
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.more)])
@pytest.mark.parametrize("change", [freeze, hook, evaluate, move, clamp])
def test_changes_after_an_epoch_are_obeyed(engine: str, change: Callable[[Any], object]) -> None:
    wanted, ours = (fitted(name, change) for name in ("pyro", engine))
    torch.testing.assert_close(ours.losses, wanted.losses, rtol=1e-4, atol=1e-4)
    for name, parameter in wanted.model.named_parameters():
        torch.testing.assert_close(dict(ours.model.named_parameters())[name], parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_a_parameter_that_the_optimiser_does_not_have_is_an_error(engine: str) -> None:
    def replace(model: Any) -> None:
        old = next(iter(body(model).values()))
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is old:
                    module._parameters[name] = nn.Parameter(torch.zeros_like(old))

    with pytest.raises(RuntimeError, match="has been replaced, or requires a gradient and did not"):
        fitted(engine, replace)


class Late:
    on = False


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_a_parameter_that_only_later_calls_of_a_program_read_is_an_error(engine: str) -> None:
    """`SVI` trains it from there; here no step would, also where it is in the store from before."""

    def model(y: Tensor) -> None:
        shift = pyro.param("late", torch.zeros(())) if Late.on else 0.0
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean + shift, 1.0), obs=y)

    def switch(*_: Any) -> None:
        Late.on = True

    switch.every = 10  # type: ignore[attr-defined]
    pyro.clear_param_store()
    pyro.param("late", torch.ones(()))
    Late.on, guide = False, AutoNormal(model)
    options: Any = {"steps": 40, "lr": 0.01, "engine": engine, "progress": False, "after_epoch": switch}
    with pytest.raises(RuntimeError, match="the parameter late is read by a later call"):
        pyrodrop.fit(model, guide, {"y": Y[:, 0]}, **options)


def test_a_compiled_network_of_a_program_is_trained_as_it_is() -> None:
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        pyro.clear_param_store()
        plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        network = torch.compile(plain, backend="eager") if compiled else plain

        def model(x: Tensor, y: Tensor, network: Any = network) -> None:
            pyro.module("network", network)
            with pyro.plate("rows", len(x)):
                pyro.sample("y", dist.Normal(network(x)[:, 0], 1.0), obs=y)

        run = pyrodrop.fit(model, lambda x, y: None, {"x": X, "y": Y[:, 0]}, steps=5, lr=0.01, progress=False)
        plain.eval()
        want = dist.Normal(plain(X)[:, 0], 1.0).log_prob(Y[:, 0]).sum()
        assert run.elbo(2).value == pytest.approx(float(want), rel=1e-5)
        losses.append(run.losses)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)


class Scaled(torch.autograd.Function):
    """Passes its argument on, and a multiple of its gradient."""

    factor = np.ones(1)
    beta = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return float(Scaled.factor[0]) * gradient


class Multiplied(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("at", [4, 14])
def test_what_cannot_be_seen_after_an_epoch_is_found(at: int) -> None:
    """A factor of the gradient in an array: at once after epoch 4, at the end where there was no other comparison."""
    Scaled.factor[0] = 1.0
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), Multiplied(), nn.Linear(5, 1))
    prior = {"3.*": priors.Gaussian(), "*": None}
    model = models.from_module(network, prior=prior, likelihood=likelihoods.Gaussian(10.0))

    def after_epoch(fit: pyrodrop.Fit, epoch: float) -> None:
        Scaled.factor[0] = 1.0 if epoch < at else 0.5

    with pytest.raises(RuntimeError, match="the gradient of .* is not Pyro's"):
        pyrodrop.fit(
            model, guides.MeanField(model), (X, Y), steps=60, batch_size=5, engine="traced", after_epoch=after_epoch
        )


def test_what_a_program_reads_elsewhere_is_found() -> None:
    scale = np.ones(1)

    def program(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean, float(scale[0])), obs=y)

    training = pyrodrop.Training(program, AutoNormal(program), {"y": torch.ones(5)}, steps=60, engine="traced")
    training.advance(20)
    scale[0] = 2.0
    with pytest.raises(RuntimeError, match="the loss of the recorded steps is not Pyro's"):
        training.advance(40)
