"""A recurrence written by hand, one weight for all steps."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.around, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            h = torch.tanh(self.inward(step) + self.around(h))
        return self.head(h)


CASE = Case(
    network=Loop,
    x=lambda: torch.randn(6, 3, 3),
    last="head.weight",
    rows=True,
)
