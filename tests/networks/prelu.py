"""PReLU: an activation with a weight."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.PReLU(5), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 3),
    last="2.weight",
)
