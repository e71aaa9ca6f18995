"""Layers that PyTorch computes by operations of its own are traced and compiled, and what of a layer is dropped together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.randn(12, 5, 4, generator=torch.Generator().manual_seed(1))
Y = X[:, 0, :1].sin()


class LastStep(nn.Module):
    """A recurrent network's last output."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.recurrent, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def model_of(net: nn.Module, **options: Any) -> models.NetworkModel:
    torch.manual_seed(2)
    return models.from_module(net, prior=priors.Gaussian(0.7), likelihood=likelihoods.Gaussian(4.0), **options)


def trained(model: Any, guide: Any, **settings: Any) -> Any:
    dtype = torch.get_default_dtype()
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(model, guide, (X.to(dtype), Y.to(dtype)), **{"steps": 10, "lr": 1e-2, "progress": False} | settings)


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
