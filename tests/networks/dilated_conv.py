"""A dilated, strided convolution with circular padding."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2, dilation=2, stride=2, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(18, 2),
    ),
    x=lambda: torch.randn(6, 1, 5, 5),
    last="3.weight",
    rows=True,
)
