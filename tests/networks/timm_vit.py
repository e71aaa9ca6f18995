"""timm's vision transformer in a tiny configuration, random weights."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case, real


def network() -> nn.Module:
    real.torchvision()
    from timm.models import VisionTransformer

    return VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=2, num_heads=2, num_classes=3)


CASE = Case(
    network=network,
    x=lambda: torch.randn(6, 3, 8, 8),
    likelihood=likelihoods.Categorical,
    drop_rate={"cls_token": 0.0, "pos_embed": 0.0, "*": 0.2},
    rows=True,
    draws=0.1,
    needs=("timm", "torchvision"),
)
