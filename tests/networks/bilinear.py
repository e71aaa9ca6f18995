"""nn.Bilinear, whose weight has two inputs and is refused by dropout unless its rate is 0."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = nn.Bilinear(3, 3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.pair(x, x)))


CASE = Case(
    network=Product,
    x=lambda: torch.randn(6, 3),
    drop_rate={"pair.*": 0.0, "*": 0.3},
    last="head.weight",
)
