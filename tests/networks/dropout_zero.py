"""nn.Dropout(0.0) is no noise."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.0), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 3),
    last="3.weight",
)
