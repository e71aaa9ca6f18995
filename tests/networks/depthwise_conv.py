"""A depthwise and a pointwise convolution: a coin for each channel."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(
        nn.Conv2d(3, 6, 2, groups=3), nn.ReLU(), nn.Conv2d(6, 2, 1), nn.Flatten(), nn.Linear(8, 2)
    ),
    x=lambda: torch.randn(6, 3, 3, 3),
    last="4.weight",
    rows=True,
)
