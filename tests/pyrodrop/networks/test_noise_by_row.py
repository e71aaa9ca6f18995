"""Where training by local noise is of another posterior over activations, the fit says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

IMAGES = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randn(8, 2, generator=torch.Generator().manual_seed(2))


def convolutional() -> models.NetworkModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    return models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(1.0))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "estimator", "sites"),
    [
        (guides.MeanField, "local", ["0.weight"]),
        (lambda m: guides.Ensemble(m, guides.MeanField, 2), "local", ["0.weight"]),
        (lambda m: guides.BernoulliDropout(m, 0.2, theta=0.1), "local", ["0.weight"]),
        (lambda m: guides.BernoulliDropout(m, 0.2), "local", []),
        (guides.Point, "local", []),
        (guides.MeanField, "shared", []),
        (guides.MeanField, "per_example", []),
    ],
    ids=["mean field", "ensemble", "theta", "dropout", "point", "shared", "per example"],
)
def test_a_fit_says_which_noise_was_drawn_by_row(
    make: object, estimator: str, sites: list[str], tmp_path: Path
) -> None:
    model = convolutional()
    run = pyrodrop.fit(model, make(model), (IMAGES, Y), steps=2, estimator=estimator)  # type: ignore[operator, arg-type]
    assert run.settings["noise_by_row"] == sites
    said = "per row or position, which is another posterior over activations" in str(run.elbo(2).convention)
    assert said == bool(sites)
    loaded = pyrodrop.Fit.load(run.save(tmp_path / "fit.safetensors"), run.model, run.guide)
    assert str(loaded.elbo(2, data=(IMAGES, Y)).convention) == str(run.elbo(2).convention)
