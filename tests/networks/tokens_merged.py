"""Rows of all examples merged into one axis and taken apart again."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Merged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.each(x.reshape(-1, x.shape[-1])))
        return self.head(h.reshape(*x.shape[:-1], -1).mean(1))


CASE = Case(
    network=Merged,
    x=lambda: torch.randn(6, 4, 3),
    last="head.weight",
    rows=True,
)
