"""A module that is registered under two names."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


def network() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 2))


CASE = Case(
    network=network,
    x=lambda: torch.randn(6, 4),
    last="4.weight",
)
