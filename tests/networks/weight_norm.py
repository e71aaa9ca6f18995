"""Layers under torch.nn.utils.parametrizations.weight_norm."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from pyrodrop.analysis.lab.networks import Case, Refused

CASE = Case(
    network=lambda: nn.Sequential(weight_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 3),
    refused=(Refused("a prior applies to a layer's weight itself"),),
)
