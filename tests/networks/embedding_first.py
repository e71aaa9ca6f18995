"""An embedding first: its input units are words."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(ids)).mean(1))


CASE = Case(
    network=Words,
    x=lambda: torch.randint(0, 7, (6, 5)),
    last="head.weight",
)
