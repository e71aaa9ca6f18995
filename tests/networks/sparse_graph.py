"""A network on a graph whose neighbours are a sparse buffer."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class SparseGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)
        ring = torch.eye(6).roll(1, 0) + torch.eye(6).roll(-2, 0)
        self.register_buffer("neighbours", (ring / 2).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.neighbours @ torch.tanh(self.first(torch.sparse.mm(self.neighbours, x))))  # type: ignore[no-any-return]


CASE = Case(
    network=SparseGraph,
    x=lambda: torch.randn(6, 3),
    whole=True,
    refused=(
        Refused("depends on", what="pointwise"),
        Refused("depends on", estimator="local per_example flipout"),
    ),
)
