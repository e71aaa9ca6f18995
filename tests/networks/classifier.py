"""A classifier: fully connected, with logits for outputs."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)),
    x=lambda: torch.randn(6, 3),
    likelihood=likelihoods.Categorical,
    last="2.weight",
)
