"""No network may ignore a drawn weight in silence: recurrent layers, which keep lists of theirs, and layers never called."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.reparam import LocalReparam, reparameterize

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


def with_weights(net: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The plain network with these weights written into it."""
    net = copy.deepcopy(net)
    net.load_state_dict({**net.state_dict(), **weights})
    return net


def test_recurrent_layers_realise_one_draw() -> None:
    """Noise of the activations cannot be that of one weight at all times: these and all examples see the one draw that the
    trace holds."""
    net = Recurrent(nn.LSTM)
    model = model_of(net)
    guide = guides.MeanField(model, init_scale=0.5).double()
    wrapped = reparameterize(model, guide, LocalReparam())
    with poutine.block():
        trace = poutine.trace(wrapped[1]).get_trace(X)
        f = poutine.replay(wrapped[0], trace=trace)(X)
    lazy = {n: trace.nodes[n]["value"] for n in model.weight_sites()}
    assert [len(w.drawn) for w in lazy.values()] == [1, 1]
    torch.testing.assert_close(f, with_weights(net, {n: w.drawn[0].detach() for n, w in lazy.items()})(X))


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


class KeepsACopy(nn.Module):
    """As recurrent layers once did: a list of its own, which a drawn weight does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 1)
        self.kept = [self.a.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kept[0].T


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Partly(), r"a prior but no gradient: b\.weight\. .*Remove a layer that is never called"),
        (Constant(), r"a prior but no gradient: a\.weight\. .*detaches"),
        (KeepsACopy(), "uses some that are not its own"),
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
    with pytest.raises(
        ValueError, match=r"got a network with layers layer that drop units: .*build others with dropout=0"
    ):
        model_of(Recurrent(nn.LSTM, num_layers=2, dropout=0.1))
    with pytest.raises(ValueError, match=r"layers 0, 1 that drop units"):
        model_of(nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1), nn.Dropout(0.1)))
