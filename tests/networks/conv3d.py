"""A convolution over a volume."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)),
    x=lambda: torch.randn(6, 1, 3, 3, 3),
    last="3.weight",
    rows=True,
)
