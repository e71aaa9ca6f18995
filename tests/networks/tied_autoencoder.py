"""An autoencoder whose decoder is the encoder's weight, transposed."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.encoder(x)) @ self.encoder.weight + self.bias


CASE = Case(
    network=Autoencoder,
    x=lambda: torch.randn(6, 4),
)
