"""Layer normalisation over two axes, whose scale is a matrix and no map of units."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(3, 4), nn.LayerNorm([2, 4]), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.first(x)).flatten(1))


CASE = Case(
    network=Normed,
    x=lambda: torch.randn(6, 2, 3),
    drop_rate={"norm.*": 0.0, "*": 0.3},
    last="head.weight",
    rows=True,
)
