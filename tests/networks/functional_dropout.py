"""F.dropout in forward: noise that is not the guide's, refused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(torch.tanh(self.first(x)), 0.2, self.training))


CASE = Case(
    network=Noisy,
    x=lambda: torch.randn(6, 3),
    refused=(Refused("noise"),),
)
