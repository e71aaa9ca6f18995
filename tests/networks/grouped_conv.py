"""A convolution in groups."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Conv2d(4, 6, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)),
    x=lambda: torch.randn(6, 4, 3, 3),
    last="3.weight",
    rows=True,
)
