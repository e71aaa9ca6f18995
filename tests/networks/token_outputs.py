"""An output for every token: [N, T, D] in and out."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 4, 3),
    rows=True,
)
