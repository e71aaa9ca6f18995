"""A fully connected network."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)),
    x=lambda: torch.randn(6, 3),
    last="2.weight",
)
