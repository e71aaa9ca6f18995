"""A U-Net: down, up, and a skip that is concatenated; images out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.down(x))
        low = torch.relu(self.low(F.max_pool2d(skip, 2)))
        return self.head(torch.cat([skip, self.up(low)], 1)).squeeze(1)


CASE = Case(
    network=UNet,
    x=lambda: torch.randn(6, 1, 4, 4),
    rows=True,
)
