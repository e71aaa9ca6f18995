"""A network whose first layers are frozen by requires_grad_(False)."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    net[0].requires_grad_(False)
    return net


CASE = Case(
    network=network,
    x=lambda: torch.randn(6, 3),
    last="4.weight",
)
