"""nn.MultiheadAttention of tokens with themselves."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, _ = self.attention(x, x, x, need_weights=False)
        return self.head(seen.mean(1))


CASE = Case(
    network=Attending,
    x=lambda: torch.randn(6, 3, 4),
    last="head.weight",
    rows=True,
)
