"""A network with a fixed random function added to it."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import models
from pyrodrop.analysis.lab.networks import Case, Refused

CASE = Case(
    network=lambda: models.WithPriorFunction(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), scale=0.5),
    x=lambda: torch.randn(6, 3),
    last="net.2.weight",
    refused=(Refused("which is not this layer", what="analytic"),),  # the network returns the sum
)
