"""Biases of shape [1, D]."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(3, 5, bias=False), nn.Parameter(torch.zeros(1, 5) + 0.3)
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layer(x) + self.shift))


CASE = Case(
    network=Shifted,
    x=lambda: torch.randn(6, 3),
    drop_rate={"shift": 0.0, "*": 0.3},
    last="head.weight",
)
