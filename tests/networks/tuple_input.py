"""x as a tuple of two tensors."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.left(x) + self.right(ids)))


CASE = Case(
    network=Two,
    x=lambda: (torch.randn(6, 3), torch.randint(0, 5, (6,))),
    last="head.weight",
)
