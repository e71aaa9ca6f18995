"""x as a mapping of tensors, which the network takes whole: forward(batch)."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class OfBatches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.head(torch.tanh(self.first(batch["features"])) * batch["gain"])


CASE = Case(
    network=OfBatches,
    x=lambda: {"features": torch.randn(6, 3), "gain": torch.rand(6, 1)},
    last="head.weight",
)
