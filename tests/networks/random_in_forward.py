"""torch.rand in forward, in every mode: refused."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.first(x + 0.1 * torch.rand(x.shape, dtype=x.dtype))))


CASE = Case(
    network=Noisy,
    x=lambda: torch.randn(6, 3),
    refused=(Refused("noise"),),
)
