"""A class token and position embeddings, which are no units' weights."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 3, 4))
        self.each, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(torch.tanh(self.each(h)).mean(1))


CASE = Case(
    network=Tokens,
    x=lambda: torch.randn(6, 2, 4),
    drop_rate={"token": 0.0, "position": 0.0, "*": 0.3},
    last="head.weight",
    rows=True,
)
