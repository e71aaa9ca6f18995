"""A network on a graph: it takes all nodes at once, and each sees its neighbours."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)
        self.register_buffer("neighbours", (torch.rand(6, 6) < 0.5).double() / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.neighbours @ torch.tanh(self.first(self.neighbours @ x)))


CASE = Case(
    network=Graph,
    x=lambda: torch.randn(6, 3),
    whole=True,
    refused=(
        Refused("depends on", what="pointwise"),
        Refused("depends on", estimator="local per_example flipout"),
    ),
)
