"""A reading is trained further as any model and guide is, with noise that no weight carries among its dropouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone


class Tokens(nn.Module):
    """Masks of tokens, which are noise of the function, and of input units of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(torch.tanh(self.first(x)), 0.2, self.training).mean(1)
        return self.last(self.drop(h))  # type: ignore[no-any-return]


@pytest.fixture
def reading() -> pyrodrop.Reading:
    torch.manual_seed(0)
    x = torch.randn(50, 5, 4)
    settings: dict[str, Any] = {"likelihood": likelihoods.Categorical(), "weight_decay": 1e-2, "num_data": 50}
    return pyrodrop.read(Tokens(), x[:8], **settings)


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(50, 5, 4), torch.randint(3, (50,))


def fitted(reading: pyrodrop.Reading, data: Any, **settings: Any) -> Any:
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(reading.model, reading.guide, data, steps=12, batch_size=10, progress=False, **settings)


@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("estimator", ["shared", "local"])
def test_engines_have_the_losses_of_pyro(reading: Any, data: Any, estimator: Any, engine: Any) -> None:
    want = fitted(reading, data, estimator=estimator, engine="pyro", seed=3)
    got = fitted(reading, data, estimator=estimator, engine=engine, seed=3)
    assert got.settings["engine"] == engine
    torch.testing.assert_close(got.losses, want.losses, rtol=2e-6, atol=0)
    assert want.losses.unique().numel() == 12


@pytest.mark.more
def test_replicates_are_the_fits_alone(reading: Any, data: Any) -> None:
    with drawn_as_alone(0, 1):
        many = fitted(reading, data, count=2)
    for seed, replicate in enumerate(many):
        alone = fitted(reading, data, seed=seed, engine="traced")
        torch.testing.assert_close(replicate.losses, alone.losses, rtol=2e-6, atol=0)
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(replicate.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(many[0].losses, many[1].losses)


def test_elbos_of_a_reading_and_a_fit_are_compared_on_given_data(reading: Any, data: Any) -> None:
    runs = {"reading": reading, "fit": fitted(reading, data)}
    with pytest.raises(ValueError, match=r"a reading, .* do not hold.*compare\(train=...\), for 'reading'"):
        pyrodrop.compare(runs, by="elbo")
    rows = pyrodrop.compare(runs, by="elbo", train=data).rows
    assert rows["reading"]["elbo"] == pytest.approx(reading.elbo(100, data=data).value)
    with pytest.raises(ValueError, match=r"or a reading has no training data, which must be passed, elbo\(data=...\)"):
        reading.elbo(3)
