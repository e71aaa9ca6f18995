"""A convolutional classifier with batch normalisation."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case, Refused

CASE = Case(
    network=lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ),
    x=lambda: torch.randn(8, 1, 6, 6),
    likelihood=likelihoods.Categorical,
    drop_rate={"0.*": 0.0, "*": 0.3},  # an image without its one channel would meet the ReLU at its kink
    rows=True,
    refused=(Refused("in training mode", estimator="local per_example flipout"),),
)
