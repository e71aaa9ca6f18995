"""A picture for every example: [N, H, W]."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.Unflatten(1, (2, 3))),
    x=lambda: torch.randn(6, 3),
)
