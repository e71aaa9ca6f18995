"""A convolution whose channels are scaled by a [C, 1, 1] parameter."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gamma = nn.Conv2d(1, 3, 2), nn.Parameter(torch.full((3, 1, 1), 0.5))
        self.head = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.gamma * self.conv(x)).flatten(1))


CASE = Case(
    network=Scaled,
    x=lambda: torch.randn(6, 1, 3, 3),
    drop_rate={"gamma": 0.0, "*": 0.3},
    last="head.weight",
    rows=True,
)
