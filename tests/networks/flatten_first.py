"""Images, flattened first."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 1, 3, 4),
    last="3.weight",
)
