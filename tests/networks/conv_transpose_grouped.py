"""A transposed convolution in groups, behind a convolution."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(
        nn.Conv1d(2, 4, 2), nn.Tanh(), nn.ConvTranspose1d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(20, 2)
    ),
    x=lambda: torch.randn(6, 2, 5),
    last="4.weight",
    rows=True,
)
