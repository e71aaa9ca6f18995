"""torchvision's MobileNetV3-small at a tenth of its width, random weights."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.networks import Case, Refused, real


def network() -> nn.Module:
    real.torchvision()
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(width_mult=0.1, num_classes=3, dropout=0.0)


CASE = Case(
    network=network,
    x=lambda: torch.randn(4, 3, 32, 32),
    likelihood=likelihoods.Categorical,
    rows=True,
    draws=0.1,
    needs=("torchvision",),
    refused=(Refused("in training mode", estimator="local per_example flipout"),),
)
