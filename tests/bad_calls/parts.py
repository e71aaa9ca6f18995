"""Small models, guides and predictions for calls that need one."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, models, priors
from tests.small import mlp


def model(*widths: int, **changed: Any) -> models.MLP:
    return mlp(*(widths or (2, 3, 1)), precision=1.0, **changed)


def sparse() -> dict[str, Any]:
    of = model(prior=priors.ARD())
    return {"model": of, "guide": guides.SparseDropout(of)}


def prediction(classes: int = 0) -> pyrodrop.Prediction:
    """Two samples at three points: of real numbers, or of class labels."""
    f = torch.randn(2, 3, classes or 1)
    distribution = dist.Categorical(logits=f) if classes else dist.Normal(f, 0.5).to_event(1)
    return pyrodrop.Prediction(f, distribution)


def dropout_network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3))
