"""LeNet, at its smallest."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten()),
        *(nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3)),
    ),
    x=lambda: torch.randn(6, 1, 8, 8),
    likelihood=likelihoods.Categorical,
    rows=True,
)
