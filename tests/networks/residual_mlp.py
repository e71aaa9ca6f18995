"""A fully connected network with a skip connection."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


CASE = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 4), Block(), nn.Linear(4, 1)),
    x=lambda: torch.randn(6, 3),
    last="2.weight",
)
