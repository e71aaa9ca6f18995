"""Last-layer inference: the other weights have no prior and are trained as point estimates."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 3),
    scales={"2.*": 0.7, "*": None},
    last="2.weight",
)
