"""A convolution over a length."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
    x=lambda: torch.randn(6, 2, 5),
    last="3.weight",
    rows=True,
)
