"""A transposed convolution first."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)),
    x=lambda: torch.randn(6, 2, 2, 2),
    last="3.weight",
    rows=True,
)
