"""A set of rows per example: the same layers for each, then their mean."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class SetNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.each(x)).mean(1))


CASE = Case(
    network=SetNetwork,
    x=lambda: torch.randn(6, 4, 3),
    last="head.weight",
    rows=True,
)
