"""Drop path: whole branches left out at random in training, refused."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class DropPath(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.new_empty(len(x), 1).bernoulli_(0.9) / 0.9 if self.training else x


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.path = DropPath()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        return self.head(h + self.path(torch.tanh(self.branch(h))))


CASE = Case(
    network=Residual,
    x=lambda: torch.randn(6, 3),
    refused=(Refused("noise"),),
)
