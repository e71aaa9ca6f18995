"""No network may ignore a drawn weight in silence: recurrent layers, which keep lists of theirs, and layers never called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

pytestmark = pytest.mark.usefixtures("float64")
X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1, keepdim=True)


class Recurrent(nn.Module):
    """The first unit of a recurrent layer after the last of the times ``x [N, times]``."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layer = kind(1, 3, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[..., None])[0][:, -1, :1]


def model_of(net: nn.Module) -> models.NetworkModel:
    return models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()


class Partly(nn.Module):
    """Computes without a layer that it has, unless `use` says otherwise of x."""

    def __init__(self, use: Any = lambda x: False) -> None:
        super().__init__()
        self.a, self.b, self.use = nn.Linear(3, 1), nn.Linear(3, 1), use

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x) if self.use(x) else self.a(x)


class Constant(nn.Module):
    """An output that no gradient comes through."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).detach()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Partly(), r"a prior but no gradient: b\.weight\. .*Remove a layer that is never called"),
        (Constant(), r"a prior but no gradient: a\.weight\. .*detaches"),
    ],
)
def test_a_weight_that_has_no_part_is_named_before_training(net: nn.Module, message: str) -> None:
    model = model_of(net.double())
    with pytest.raises(ValueError, match=message):
        pyrodrop.fit(model, guides.MeanField(model).double(), (X, Y), steps=1)


def test_a_network_that_chooses_its_way_is_not_refused() -> None:
    """The first row alone does not need the second layer, the rows together do. And a gradient of 0 is a part."""
    model = model_of(Partly(lambda x: len(x) > 1).double())
    pyrodrop.fit(model, guides.MeanField(model).double(), (X, Y), steps=1)
    dead = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    nn.init.constant_(dead[0].bias, -100.0)
    model = model_of(dead)
    pyrodrop.fit(model, guides.MeanField(model).double(), (X, Y), steps=1)


def test_a_recurrent_layer_that_does_not_see_drawn_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a layer that does not follow its attributes, as PyTorch's have to."""
    monkeypatch.setattr(nn.RNNBase, "__setattr__", nn.Module.__setattr__)
    monkeypatch.setattr(nn.RNNBase, "_update_flat_weights", lambda self: None, raising=False)
    model = model_of(Recurrent(nn.LSTM))
    with pytest.raises(ValueError, match=r"no gradient: layer.weight_ih_l0, layer.weight_hh_l0\. .*uses a copy"):
        pyrodrop.fit(model, guides.MeanField(model).double(), (X, Y), steps=1)


def test_dropout_inside_a_layer_is_refused() -> None:
    inside = nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1), nn.LSTM(3, 3, num_layers=2, dropout=0.1))
    with pytest.raises(ValueError, match=r"layers 0, 1 that drop units: .*build others with dropout=0"):
        model_of(inside)
