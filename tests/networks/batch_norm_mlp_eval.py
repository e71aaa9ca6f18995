"""Batch normalisation in evaluation mode: its running statistics stay as they are."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).eval(),
    x=lambda: torch.randn(8, 3) * 2 + 1,
    last="3.weight",
)
