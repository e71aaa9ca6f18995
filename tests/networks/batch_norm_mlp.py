"""A fully connected network with batch normalisation, in training mode as it is built."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)),
    x=lambda: torch.randn(8, 3) * 2 + 1,
    last="3.weight",
    refused=(Refused("in training mode", estimator="local per_example flipout"),),
)
