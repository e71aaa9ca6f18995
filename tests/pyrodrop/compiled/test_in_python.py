"""Where TorchScript lacks an operation, recorded steps are lines of Python, with the same bits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin()


def dropout() -> pyrodrop.Fit:
    model = models.MLP([3, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0, learned=True))
    return pyrodrop.fit(model, guides.ConcreteDropout(model), (X, Y), estimator="local", **OPTIONS)


def normalised() -> pyrodrop.Fit:
    """Running statistics are updated, and the last minibatch is smaller."""
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(4.0))
    return pyrodrop.fit(model, guides.MeanField(model), (X, Y), **OPTIONS)


def replicates() -> pyrodrop.Fit:
    model = models.MLP([3, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    made = pyrodrop.fit_replicates(model, guides.BernoulliDropout(model, 0.1), (X, Y), count=3, **OPTIONS)
    return made[1]


OPTIONS: dict[str, Any] = {"steps": 70, "lr": 1e-2, "batch_size": 16, "engine": "traced", "seed": 3, "progress": False}


@pytest.mark.few(1)
@pytest.mark.parametrize("fit", [dropout, normalised, replicates])
def test_fits_without_torchscript_have_the_same_bits(
    fit: Callable[[], pyrodrop.Fit], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made() -> pyrodrop.Fit:
        torch.manual_seed(0)
        return fit()

    want = made()

    def lacks(_: object) -> None:
        raise NotImplementedError("TorchScript has no form of it")

    monkeypatch.setattr("pyrodrop.compiled.program.script", lacks)
    with caplog.at_level(logging.INFO, "pyrodrop"):
        got = made()
    assert "TorchScript has no form of it" in caplog.text
    assert got.settings["engine"] == "traced"
    assert torch.equal(got.history, want.history)
    for one, two in zip((got.model, got.guide), (want.model, want.guide), strict=True):
        assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))  # type: ignore[attr-defined]
