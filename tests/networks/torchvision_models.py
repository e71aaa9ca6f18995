"""Networks of torchvision, random weights: ResNet-18, and MobileNetV3-small at a tenth of its width."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case, Refused, real


def network(name: str, **options: Any) -> nn.Module:
    real.torchvision()
    from torchvision import models

    return getattr(models, name)(num_classes=3, **options)


def case(about: str, side: int, draws: float, name: str, **options: Any) -> Case:
    return Case(
        network=functools.partial(network, name, **options),
        x=lambda: torch.randn(4, 3, side, side),
        likelihood=likelihoods.Categorical,
        rows=True,
        draws=draws,
        needs=("torchvision",),
        refused=(Refused("in training mode", estimator="local per_example"),),
        about=about,
    )


CASES = {
    "torchvision_mobilenet_v3": case(
        "torchvision's MobileNetV3-small at a tenth of its width, random weights.",
        32, 0.1, "mobilenet_v3_small", width_mult=0.1, dropout=0.0,
    ),
    "torchvision_resnet18": case("torchvision's ResNet-18, random weights.", 16, 0.01, "resnet18"),
}  # fmt: skip
