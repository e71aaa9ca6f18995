"""Scaled dot-product attention over the tokens of an example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 2)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(seen.mean(1))


CASE = Case(
    network=Attention,
    x=lambda: torch.randn(6, 3, 4),
    last="head.weight",
    rows=True,
)
