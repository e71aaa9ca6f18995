"""Networks of graphs and sets."""

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


class SparseGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)
        ring = torch.eye(6).roll(1, 0) + torch.eye(6).roll(-2, 0)
        self.register_buffer("neighbours", (ring / 2).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.neighbours @ torch.tanh(self.first(torch.sparse.mm(self.neighbours, x))))  # type: ignore[no-any-return]


class SetNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.each(x)).mean(1))


CASES = {
    "graph_network": Case(
        about="A network on a graph: it takes all nodes at once, and each sees its neighbours.",
        network=Graph,
        x=lambda: torch.randn(6, 3),
        whole=True,
        refused=(Refused("depends on", estimator="local per_example"),),
    ),
    "sparse_graph": Case(
        about="A network on a graph whose neighbours are a sparse buffer.",
        network=SparseGraph,
        x=lambda: torch.randn(6, 3),
        whole=True,
        refused=(Refused("must be dense tensors"),),
    ),
    "set_network": Case(
        about="A set of rows per example: the same layers for each, then their mean.",
        network=SetNetwork,
        x=lambda: torch.randn(6, 4, 3),
        rows=True,
    ),
}
