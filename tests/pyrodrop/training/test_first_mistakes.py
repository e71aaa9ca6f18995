"""Wrong calls of the first minutes: each error names the argument and says what to pass instead."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from tests.small import normal

X = normal(12, 3, seed=0)
Y, LABELS = X[:, :1].clone(), torch.arange(12) % 3
GAUSS = {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(1.0)}


def mlp(**changed: Any) -> models.MLP:
    return models.MLP([3, 4, 1], **{**GAUSS, **changed})


def fit(*data: Any, outputs: int = 1, **changed: Any) -> Any:
    likelihood = likelihoods.Gaussian(1.0) if outputs == 1 else likelihoods.Categorical()
    model = models.MLP([3, 4, outputs], prior=priors.Gaussian(), likelihood=likelihood)
    return pyrodrop.fit(
        model, guides.MeanField(model), *(data or ((X, Y),)), **{"steps": 1, "engine": "pyro", **changed}
    )


def many(data: Any) -> Any:
    model = mlp(likelihood=likelihoods.Gaussian(1.0))
    return pyrodrop.fit_replicates(model, guides.MeanField(model), data, count=2, steps=1)


def images(x: torch.Tensor, model: Any) -> Any:
    return pyrodrop.fit(model, guides.MeanField(model), (x, LABELS), steps=1, engine="pyro")


def convolutions() -> Any:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 3))
    return models.from_module(net, priors.Gaussian(), likelihoods.Categorical())


def lenet() -> Any:
    return models.LeNet5(prior=priors.Gaussian(), likelihood=likelihoods.Categorical())


def line(x: torch.Tensor, y: torch.Tensor | None = None, num_data: int = 0) -> None:
    slope = pyro.sample("slope", pyro.distributions.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", pyro.distributions.Normal(slope * x, 1.0), obs=y)


def vector() -> Any:
    return pyrodrop.fit(line, pyro.infer.autoguide.AutoNormal(line), (X[:, 0], Y[:, 0]), steps=1)


def coin(y: torch.Tensor) -> None:
    z = pyro.sample("z", pyro.distributions.Bernoulli(0.5))
    pyro.sample("y", pyro.distributions.Normal(z, 1.0).expand(y.shape).to_event(2), obs=y)


ROWS = torch.utils.data.TensorDataset(X, Y)
CALLS: dict[str, tuple[Any, str]] = {
    "an optimiser of Pyro": (lambda: fit(optimizer=pyro.optim.Adam({"lr": 0.1})), "optimizer could not be made"),
    "a made optimiser": (lambda: fit(optimizer=torch.optim.Adam([X])), "optimizer must be a torch.optim class .*got"),
    "a class of schedules": (lambda: fit(lr_schedule=torch.optim.lr_scheduler.StepLR), "StepLR.*missing 1 required"),
    "steps as a float": (lambda: fit(steps=1e3), r"steps .*whole number .*got the float 1000\.0: write 1000$"),
    "no steps": (lambda: pyrodrop.fit(mlp(), guides.MeanField(mlp()), (X, Y)), "steps is the number .*got None"),
    "x and y apart": (lambda: fit(X, Y), "positional arguments"),
    "epochs": (lambda: fit(epochs=3), "unexpected keyword argument 'epochs'"),
    "a loader": (lambda: many(torch.utils.data.DataLoader(ROWS)), "data must .*DataLoader: .*pyrodrop.fit a DataLoader"),
    "a vector x and a Pyro program": (vector, r"y must .*x of shape \[12\] is passed on as \[12, 1\]: take x\[:, 0\]"),
    "a number as prior": (lambda: mlp(prior=1.0), r"prior must .*priors.Gaussian\(scale=1.0\).*got the float 1.0"),
    "a list to compare": (lambda: pyrodrop.compare([fit()], (X, Y)), r"fits must .*\{'a': fit\}; got a list"),  # type: ignore[arg-type]
    "labels from 1": (lambda: fit((X, LABELS + 1), outputs=3), "y: .*got 1 to 3: the first class is 0"),
    "swapped": (lambda: pyrodrop.fit(guides.MeanField(mlp()), mlp(), (X, Y), steps=1), "a MeanField as model"),
    "a network": (lambda: pyrodrop.fit(torch.nn.Linear(3, 1), lambda x, y: None, (X, Y), steps=1), ": models.from_module"),
    "a discrete site": (lambda: pyrodrop.fit(coin, lambda y: None, {"y": X}, steps=1), r"site 'z'.*TraceEnum_ELBO\(\)"),
    "a discrete site, auto": (lambda: pyrodrop.fit(coin, AutoNormal(coin), {"y": X}, steps=1), "'z'.*config_enumerate"),

    "an exact posterior": (lambda: pyrodrop.zoo.entry("exact/yacht"), "is called .exact.yacht.; .*see pyrodrop list"),
    "images without a channel": (lambda: images(torch.randn(12, 8, 8), convolutions()), r"images \[N, channels, height"),
    "digits without a channel": (lambda: images(torch.randn(12, 28, 28), lenet()), r"images \[N, channels, height"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_message_says_what_to_pass(name: str) -> None:
    call, said = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=said):
        call()


@pytest.mark.parametrize("unit", [1e-19, 1e-40, 1e-45])
def test_numbers_that_float32_loses_are_refused_and_constants_are_not(unit: float) -> None:
    """Their variance would be 0, and the noise would stay where it starts."""
    from pyrodrop.data import Dataset

    for data in ((X, Y * unit), Dataset(X, Y * unit).standardized()):
        with pytest.raises(ValueError, match="^y: the values of a column must be equal, or differ by at least 1e-18"):
            fit(data)
        with pytest.raises(ValueError, match="^y: the values of a column"):
            pyrodrop.potential(mlp(), data)
    if unit < 1e-30:
        with pytest.raises(ValueError, match="^x: the values of a column .* at least 1e-30.*in column 0"):
            fit(Dataset(X * unit, Y).standardized())
    assert fit((X, torch.full_like(Y, unit))).losses.isfinite().all()


def test_networks_without_values_are_refused() -> None:
    words = "must have values; .*weight of this .* is on the meta device"
    net = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(3, 1, device="meta"))
    with pytest.raises(ValueError, match=words):
        models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match=words):
        pyrodrop.read(net, X, likelihood=likelihoods.Gaussian(1.0), weight_decay=1e-4, num_data=12)
