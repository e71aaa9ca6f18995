"""nn.LSTM over a sequence."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.networks import Case, Refused


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


CASE = Case(
    network=Recurrent,
    x=lambda: torch.randn(6, 3, 3),
    last="head.weight",
    rows=True,
    draws=0.25,
    refused=(Refused("replicates run the network for many weights at once", what="replicates"),),
)
