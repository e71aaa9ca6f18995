"""A Fourier transform inside: complex activations between real layers."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 6), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.fft.rfft(torch.tanh(self.first(x))).abs())


CASE = Case(
    network=Fourier,
    x=lambda: torch.randn(6, 3),
    last="head.weight",
)
