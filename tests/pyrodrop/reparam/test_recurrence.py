"""Recurrent layers: one weight for all steps of all sequences of a minibatch, by PyTorch's own kernels."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors


class LastStep(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU | nn.RNN]) -> None:
        super().__init__()
        self.layer, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def parts(kind: Any = nn.LSTM) -> tuple[nn.Module, Any, Any, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    net = LastStep(kind)
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(1.0))
    return net, model, guides.BernoulliDropout(model, 0.4), (torch.randn(6, 4, 2), torch.randn(6, 1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_functions_are_those_of_whole_weights(kind: Any) -> None:
    net, model, guide, (x, _) = parts(kind)
    fit = pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {})
    module = fit.module(5, keep="draws", seed=1)
    f, tree = fit.predict(x, 5, seed=1).f, module.weights[0]
    for draw in range(5):
        weights = {name: tree[name][draw] for name in tree}
        torch.testing.assert_close(f[draw], functional_call(net, weights, (x,)))
    assert len(f[:, 0, 0].unique()) > 1


def test_steps_that_cannot_be_recorded_are_made_by_pyro(caplog: pytest.LogCaptureFixture) -> None:
    _, model, guide, data = parts()
    with caplog.at_level(logging.INFO, "pyrodrop"):
        fit = pyrodrop.fit(model, guide, data, steps=3, estimator="local", engine="traced", progress=False)
    assert fit.settings["engine"] == "traced" or "instead of" in caplog.text
    with pytest.raises(ValueError, match="[Ff]it one by one"):
        pyrodrop.fit_replicates(model, guide, data, count=2, steps=1)
