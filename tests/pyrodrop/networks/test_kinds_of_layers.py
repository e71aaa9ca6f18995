"""Layers that PyTorch computes by operations of its own are traced, compiled and replicated: attention, recurrent layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone

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
    with drawn_as_alone(0, 1):
        many = trained(model, guide, count=2, engine="traced")
    for r, one in enumerate(many):
        alone = trained(model, guide, seed=r, engine="pyro")
        torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.guide.mean(), alone.guide.mean(), rtol=1e-3, atol=1e-4)


@pytest.mark.few(2)
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


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("guide", [guides.MeanField, guides.BernoulliDropout])
def test_recurrent_layers_are_traced_in_float32(kind: Any, guide: Any) -> None:
    """Where nn.LSTM runs by a kernel that cannot be replayed, by the same equations."""
    model = model_of(LastStep(kind))
    for estimator in ("shared", "local", "per_example"):
        fits = [trained(model, guide(model), estimator=estimator, engine=engine) for engine in ("pyro", "traced")]
        assert [fit.settings["engine"] for fit in fits] == ["pyro", "traced"]
        torch.testing.assert_close(fits[1].history, fits[0].history, rtol=1e-5, atol=1e-5)


class TwoSteps(LastStep):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :2])


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "net"),
    [(nn.LSTM, TwoSteps), *(pytest.param(kind, LastStep, marks=pytest.mark.slow) for kind in (nn.LSTM, nn.GRU))],
)
def test_recurrent_layers_are_compiled(kind: Any, net: Any) -> None:
    model = model_of(net(kind))
    guide = guides.BernoulliDropout(model, drop_rate=0.2)
    fits = [trained(model, guide, estimator="local", engine=engine) for engine in ("pyro", "compiled")]
    assert fits[1].settings["engine"] == "compiled"
    torch.testing.assert_close(fits[1].history, fits[0].history, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", ["shared", "local", "per_example"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_replicates_of_recurrent_layers_are_the_fits_alone(kind: Any, estimator: str) -> None:
    model = model_of(LastStep(kind))
    guide = guides.BernoulliDropout(model, drop_rate=0.2)
    with drawn_as_alone(0, 1):
        many = trained(model, guide, count=2, estimator=estimator, engine="traced")
    for r, one in enumerate(many):
        alone = trained(model, guide, seed=r, estimator=estimator, engine="pyro")
        torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.guide.mean(), alone.guide.mean(), rtol=1e-3, atol=1e-4)


class Packed(LastStep):
    """Sequences of fixed lengths, or of as many steps as have an x that is not 0."""

    def __init__(self, lengths: list[int] | None) -> None:
        super().__init__(nn.LSTM)
        self.lengths = lengths

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.tensor(self.lengths[: len(x)]) if self.lengths else (x != 0).any(-1).sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, (last, _) = self.recurrent(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=6)
        return self.head(last[-1] + padded.mean(1))


def test_packed_sequences_are_traced_if_their_lengths_are_fixed() -> None:
    model = model_of(Packed([5, 3, 4, 1, 5, 2, 2, 3, 4, 5, 1, 2]))
    guide = guides.BernoulliDropout(model, drop_rate=0.2)
    fits = [trained(model, guide, engine=engine) for engine in ("pyro", "traced")]
    assert [fit.settings["engine"] for fit in fits] == ["pyro", "traced"]
    torch.testing.assert_close(fits[1].history, fits[0].history, rtol=1e-5, atol=1e-5)


def test_packed_sequences_whose_lengths_are_in_x_are_trained_by_pyro(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(Packed(None))
    fit = trained(model, guides.BernoulliDropout(model, drop_rate=0.2), engine="traced")
    assert fit.settings["engine"] == "pyro"
    assert "training with engine 'pyro' instead of 'traced': it cannot be traced" in caplog.text


def test_gradients_of_recurrent_layers_do_without_cudnn() -> None:
    """Which computes them in training mode alone; predictions use it, in float32, so that both are one function."""
    seen: list[tuple[bool, bool]] = []

    class Watched(nn.GRU):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            assert torch.backends.cudnn.rnn.fp32_precision == "ieee"
            seen.append((torch.is_grad_enabled(), torch.backends.cudnn.enabled))
            return super().forward(*args, **kwargs)

    before = torch.backends.cudnn.enabled, torch.backends.cudnn.rnn.fp32_precision
    assert before == (True, "tf32")
    model = model_of(LastStep(Watched))
    fit = trained(model, guides.MeanField(model), engine="pyro")
    assert seen.count((True, False)) >= 10
    fit.predict(X, 3)
    assert set(seen) == {(True, False), (False, True)}
    assert (torch.backends.cudnn.enabled, torch.backends.cudnn.rnn.fp32_precision) == before


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
