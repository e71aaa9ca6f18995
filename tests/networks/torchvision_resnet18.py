"""torchvision's ResNet-18, random weights."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.networks import Case, Refused, real


def network() -> nn.Module:
    real.torchvision()
    from torchvision.models import resnet18

    return resnet18(num_classes=3)


CASE = Case(
    network=network,
    x=lambda: torch.randn(4, 3, 16, 16),
    likelihood=likelihoods.Categorical,
    rows=True,
    draws=0.01,
    needs=("torchvision",),
    refused=(Refused("in training mode", estimator="local per_example flipout"),),
)
