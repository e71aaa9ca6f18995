"""A tuple out, as recurrent layers return it: output= takes the last state."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, states = x.new_zeros(len(x), 4), []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state)
        return torch.stack(states, 1), state


CASE = Case(network=Recurrent, x=lambda: torch.randn(6, 3, 3), options={"output": lambda out: out[1]}, rows=True)
