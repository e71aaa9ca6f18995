"""A ReLU that overwrites its input."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2), nn.ReLU(inplace=True)),
    x=lambda: torch.randn(6, 3),
)
