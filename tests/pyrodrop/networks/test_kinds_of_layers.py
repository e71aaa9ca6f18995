"""Layers that PyTorch computes by operations of its own: attention is traced and compiled; nn.LSTM trains by Pyro."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.randn(12, 5, 4, generator=torch.Generator().manual_seed(1))
Y = X[:, 0, :1].sin()


class Attention(nn.Module):
    """Two heads of scaled dot-product attention over five tokens, on the kernel that PyTorch takes for four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 24, bias=False), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, 2, 4)).movedim(-3, 0).transpose(-3, -2)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(heads.transpose(-3, -2).flatten(-2).mean(-2))


class LastStep(nn.Module):
    """A recurrent network's last output."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.recurrent, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def model_of(net: nn.Module) -> models.NetworkModel:
    torch.manual_seed(2)
    return models.from_module(net, prior=priors.Gaussian(0.7), likelihood=likelihoods.Gaussian(4.0))


def trained(model: Any, guide: Any, **settings: Any) -> Any:
    dtype = torch.get_default_dtype()
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(model, guide, (X.to(dtype), Y.to(dtype)), **{"steps": 10, "lr": 1e-2, "progress": False} | settings)


def plain_training(net: nn.Module, steps: int) -> dict[str, Tensor]:
    """The parameters of the network itself, trained by a loop."""
    net, x, y = copy.deepcopy(net), X.double(), Y.double()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(steps):
        decay = sum(w.square().sum() for w in net.parameters() if w.dim() > 1) / (2 * 0.7**2)
        optimizer.zero_grad()
        (2.0 * (net(x) - y).square().sum() + decay).backward()
        optimizer.step()
    return dict(net.named_parameters())


def assert_trained_alike(fit: Any, wanted: dict[str, Tensor]) -> None:
    got = {**fit.guide.mean(), **{n: fit.model.free[n] for n in fit.model.free}}
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("engine", ["pyro", "traced", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("float64")
def test_attention_trains_as_in_plain_torch(engine: str) -> None:
    torch.manual_seed(0)
    net = Attention()
    model = model_of(net)
    fit = trained(model, guides.Point(model), engine=engine)
    assert fit.settings["engine"] == engine
    assert_trained_alike(fit, plain_training(net, 10))


def test_replicates_of_attention_are_the_fits_alone() -> None:
    model = model_of(Attention())
    guide = guides.MeanField(model)
    for r, one in enumerate(trained(model, guide, count=2, engine="traced")):
        alone = trained(model, guide, seed=r, engine="pyro")
        torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.guide.mean(), alone.guide.mean(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_recurrent_layers_train_as_in_plain_torch(kind: Any, engine: Any) -> None:
    torch.manual_seed(0)
    net = LastStep(kind)
    model = model_of(net)
    fit = trained(model, guides.Point(model), steps=40, engine=engine)
    assert fit.settings["engine"] == engine
    assert_trained_alike(fit, plain_training(net, 40))


@pytest.mark.more
def test_an_lstm_trains_by_default_where_there_are_steps_enough_for_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    """In float32 it runs by a kernel that cannot be replayed: Pyro makes the steps, the log says so."""
    model = model_of(LastStep(nn.LSTM))
    guide = guides.MeanField(model)
    with caplog.at_level(logging.INFO, "pyrodrop"):
        fit = trained(model, guide, steps=301)
    assert fit.settings["engine"] == "pyro"
    assert "nn.LSTM runs a kernel on this processor" in caplog.text
    assert torch.equal(fit.history, trained(model, guide, steps=301, engine="pyro").history)
    assert float(fit.losses[-50:].mean()) < 0.7 * float(fit.losses[:10].mean())


def test_gradients_of_recurrent_layers_do_without_cudnn() -> None:
    """Which computes them in training mode alone; predictions use it."""
    seen: list[tuple[bool, bool]] = []

    class Watched(nn.GRU):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append((torch.is_grad_enabled(), torch.backends.cudnn.enabled))
            return super().forward(*args, **kwargs)

    assert torch.backends.cudnn.enabled
    model = model_of(LastStep(Watched))
    fit = trained(model, guides.MeanField(model), engine="pyro")
    assert seen.count((True, False)) >= 10
    fit.predict(X, 3)
    assert set(seen) == {(True, False), (False, True)}
    assert torch.backends.cudnn.enabled


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("engine", ["pyro", "traced", "compiled"])
def test_recurrent_layers_train_on_a_gpu(kind: Any, engine: Any) -> None:
    torch.manual_seed(0)
    model = model_of(LastStep(kind))
    guide = guides.Point(model)
    fits = [trained(model, guide, steps=40, engine=engine, device=device) for device in ("cuda", "cpu")]
    torch.testing.assert_close(fits[0].history, fits[1].history, rtol=1e-3, atol=1e-2)
    means = [fit.predict(X, 1).mean for fit in fits]
    torch.testing.assert_close(means[0], means[1], rtol=1e-2, atol=1e-3)
