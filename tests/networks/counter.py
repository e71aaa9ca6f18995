"""A counter in forward that fades a branch in: a trace would freeze it."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Warming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.calls = nn.Linear(3, 5), nn.Linear(5, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return self.head(torch.tanh(self.first(x))) * (1.0 if not self.training else min(1.0, self.calls / 4))


CASE = Case(
    network=Warming,
    x=lambda: torch.randn(6, 3),
    refused=(
        Refused("its forward changes the attributes", what="replicates"),
        Refused("its forward changes the attributes", what="checkpoint"),
    ),
)
