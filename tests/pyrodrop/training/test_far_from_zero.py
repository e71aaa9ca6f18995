"""Data far from zero, as times in seconds and large counters, of which float32 holds too few digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset, Split
from pyrodrop.data.splits import standardized
from pyrodrop.scaling import Standardize, narrowed

NOISE, TRAINED = 0.05, 100
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(140, 2, generator=GENERATOR, dtype=torch.float64)
Y = X[:, :1].sin() + NOISE * torch.randn(140, 1, generator=GENERATOR, dtype=torch.float64)
SECONDS, COUNTER = 1.7e9, 1e8


def fit(data: Any, guide: Callable[..., Any] = guides.Point, likelihood: Any = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    likelihood = likelihoods.Gaussian(NOISE**-2) if likelihood is None else likelihood
    model = models.MLP([2, 8, 1], activation="tanh", prior=priors.Gaussian(), likelihood=likelihood)
    return pyrodrop.fit(model, guide(model), data, **{"steps": 30, "lr": 0.02, "engine": "traced", **settings})


def frame(x: Tensor, y: Tensor) -> pd.DataFrame:
    return pd.DataFrame({"time": x[:, 0].numpy(), "b": x[:, 1].numpy(), "y": y[:, 0].numpy()})


WAYS: dict[str, Callable[[Tensor, Tensor], Dataset]] = {
    "float64": lambda x, y: Dataset(x, y).standardized(),
    "y [N]": lambda x, y: Dataset(x, y[:, 0]).standardized(),
    "float32": lambda x, y: Dataset(x.float(), y.float()).standardized(),
    "frame": lambda x, y: Dataset.from_frame(frame(x, y), "y"),
    "split": lambda x, y: standardized(x, y, "table"),
}


def network(run: Any, z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The outputs of the trained network, in NumPy."""
    weights = {name: value.double().numpy() for name, value in run.guide.mean().items()}
    biases = {name: run.model.free[name].detach().double().numpy() for name in run.model.free}
    hidden = np.tanh(z @ weights["layers.0.weight"].T + biases["layers.0.bias"])
    return hidden @ weights["layers.1.weight"].T + biases["layers.1.bias"]


@pytest.mark.few(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("of_x", "of_y"), [(0.0, 1e6), (SECONDS, 0.0), (SECONDS, COUNTER)])
def test_predictions_are_those_of_float64(way: str, of_x: float, of_y: float) -> None:
    """f = mean(y) + sd(y) net((x - mean(x)) / sd(x)) in NumPy, for data that are what they are after rounding to float32."""
    if way == "float32" and (of_x or of_y > 1e6):  # nothing is left of them
        pytest.skip("float32 has no such data")
    x, y = X + of_x, Y + of_y
    x, y = (x.float().double(), y.float().double()) if way == "float32" else (x, y)
    run = fit(WAYS[way](x[:TRAINED], y[:TRAINED]))
    found = run.predict(x[TRAINED:], 1)
    train_x, train_y, x_new, y_new = (part.numpy() for part in (x[:TRAINED], y[:TRAINED], x[TRAINED:], y[TRAINED:]))
    f = train_y.mean() + train_y.std() * network(run, (x_new - train_x.mean(0)) / train_x.std(0))
    np.testing.assert_allclose(found.mean.double() - of_y, f - of_y, atol=1e-5 * train_y.std() + 1e-15 * of_y)
    density = stats.norm(f, NOISE).logpdf(y_new)[:, 0]  # an error of 1e-5 is one of 2e-4 of the noise
    np.testing.assert_allclose(
        found.log_density(torch.as_tensor(y_new)), density, atol=1e-3 * (1 + np.abs(density).max())
    )
    low, high = found.interval(0.9)
    for end, z in ((low, -1.6448536), (high, 1.6448536)):
        np.testing.assert_allclose(end.double() - of_y, f - of_y + z * NOISE, atol=1e-4 * NOISE + 1e-5)
    assert found.mean.dtype == low.dtype == (torch.float64 if of_y else torch.float32)


@pytest.mark.few(2)
@pytest.mark.parametrize("likelihood", ["Gaussian", "HeteroscedasticGaussian", "StudentT"])
def test_training_is_that_of_centred_data(likelihood: str) -> None:
    """Losses, the ELBO and predictions of a posterior, up to the rounding of what is added and subtracted again."""
    found = []
    for of_x, of_y in ((0.0, 0.0), (SECONDS, COUNTER)):
        torch.manual_seed(0)
        own = getattr(likelihoods, likelihood)()
        model = models.MLP([2, 8, own.outputs(1)], prior=priors.Gaussian(), likelihood=own)
        data = Dataset(X[:TRAINED] + of_x, Y[:TRAINED] + of_y).standardized()
        run = pyrodrop.fit(model, guides.MeanField(model), data, steps=25, engine="traced")
        prediction = run.predict(X[TRAINED:] + of_x, 20)
        found.append(
            (run.losses, torch.tensor(run.elbo(5).value), prediction.mean.double() - of_y, prediction.sd.double())
        )
    for near, far in zip(*found, strict=True):
        torch.testing.assert_close(far.double(), near.double(), rtol=2e-5, atol=2e-6)


def test_frames_keep_what_float32_would_round() -> None:
    """In x, y or both, as does a frame that is predicted at."""
    far = frame(X + SECONDS, Y).assign(kind=["u", "v"] * 70)
    data = Dataset.from_frame(far, "y", categories=["kind"])
    assert data.columns is not None
    assert (data.x.dtype, data.y.dtype, data.columns.wide) == (torch.float64, torch.float32, ("time", "b"))
    np.testing.assert_array_equal(data.columns.x(far[:3])[:, 0], far["time"][:3])
    assert data.like(far[:3]).x.dtype == torch.float64
    split = Split.from_frame(far.drop(columns="kind"), "y")
    assert split.train.x.dtype == split.test.x.dtype == torch.float64
    assert Dataset.from_frame(frame(X, Y), "y").x.dtype == torch.float32


DOOR: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a pair": lambda x, y: fit((x, y)),
    "a Dataset": lambda x, y: fit(Dataset(x, y)),
    "a loader": lambda x, y: fit(DataLoader(TensorDataset(x, y), 35)),
    "minibatches": lambda x, y: fit(
        DataLoader([(x[:70], y[:70]), (x[70:], y[70:])], batch_size=None),
        num_data=140,  # type: ignore[arg-type]
    ),
    "a frame": lambda x, y: fit(Dataset.from_frame(frame(x, y), "y").with_values(inputs=None, targets=None)),
    "arrays": lambda x, y: fit((x.numpy(), y.numpy())),
    "whole numbers": lambda x, y: fit(((8 * x).long(), (8 * y).long())),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("way", DOOR)
@pytest.mark.parametrize("name", ["x", "y"])
def test_what_is_not_standardised_is_refused_wherever_it_comes_in(way: str, name: str) -> None:
    far = {"x": (X + SECONDS, Y), "y": (X, Y + COUNTER)}[name]
    with pytest.raises(ValueError, match=rf"{name} must vary by more than float32.*got values from \d+.*standardise"):
        DOOR[way](*far)
    DOOR[way](X, Y)


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_smaller_network_of_such_data_is_refused(name: str) -> None:
    far = {"x": (X + SECONDS, Y), "y": (X, Y + COUNTER)}[name]
    run = fit(Dataset(*far).standardized(), guides.SparseDropout)
    with pytest.raises(ValueError, match=f"compression needs {name} that float32 tells apart"):
        run.compress()


def test_a_standardisation_is_float64_where_float32_would_round_it() -> None:
    """By more than 2e-5 of the scale; also one of single numbers, whose dtype PyTorch does not promote to."""
    assert Standardize(20.0, 1.0).loc.dtype == torch.float32
    far = Standardize(COUNTER + 0.25, 0.5)
    assert far.loc.dtype == far.inverse(torch.zeros(3)).dtype == torch.float64
    assert far.inverse(torch.ones(1)).item() == COUNTER + 0.75
    assert far(torch.tensor([COUNTER + 0.75], dtype=torch.float64)).item() == 1
    loaded = Standardize()
    loaded.load_state_dict(far.state_dict())
    assert loaded.loc.item() == COUNTER + 0.25
    assert far.beside(torch.zeros(1)).loc.dtype == torch.float64
    assert Standardize(torch.tensor(20.0).double(), 1.0).beside(torch.zeros(1)).loc.dtype == torch.float32
    values = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    for offset, kept in ((0.0, torch.float32), (30.0, torch.float32), (1e3, torch.float64), (1e5, torch.float64)):
        assert narrowed(values / 3 + offset).dtype == kept
    assert narrowed(values + 2.0**20).dtype == torch.float32  # multiples of 1/8, which float32 has
