"""nn.LSTMCell, called step by step."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = (x.new_zeros(len(x), 4), x.new_zeros(len(x), 4))
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


CASE = Case(
    network=Recurrent,
    x=lambda: torch.randn(6, 3, 3),
    rows=True,
)
