"""A recurrent layer of torch over a sequence: nn.GRU and nn.LSTM."""

from __future__ import annotations

import functools

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.GRU | nn.LSTM]) -> None:
        super().__init__()
        self.layer, self.head = layer(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


CASES = {
    layer.__name__.lower(): Case(
        network=functools.partial(Recurrent, layer),
        x=lambda: torch.randn(6, 3, 3),
        rows=True,
        draws=0.25,
        about=f"nn.{layer.__name__} over a sequence.",
    )
    for layer in (nn.GRU, nn.LSTM)
}
