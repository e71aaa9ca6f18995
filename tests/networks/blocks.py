"""Networks of blocks, and with layers that are fixed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.down(x))
        low = torch.relu(self.low(F.max_pool2d(skip, 2)))
        return self.head(torch.cat([skip, self.up(low)], 1)).squeeze(1)


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    net[0].requires_grad_(False)
    return net


CASES = {
    "residual_mlp": Case(
        about="A fully connected network with a skip connection.",
        network=lambda: nn.Sequential(nn.Linear(3, 4), Block(), nn.Linear(4, 1)),
        x=lambda: torch.randn(6, 3),
    ),
    "unet": Case(
        about="A U-Net: down, up, and a skip that is concatenated; images out.",
        network=UNet,
        x=lambda: torch.randn(6, 1, 4, 4),
        rows=True,
    ),
    "frozen_layers": Case(
        about="A network whose first layers are frozen by requires_grad_(False).",
        network=network,
        x=lambda: torch.randn(6, 3),
    ),
}
