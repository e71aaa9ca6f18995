"""Networks that use weights in operations of their own."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = nn.Bilinear(3, 3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.pair(x, x)))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(3, 5, bias=False), nn.Parameter(torch.zeros(1, 5) + 0.3)
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layer(x) + self.shift))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(3, 4), nn.LayerNorm([2, 4]), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.first(x)).flatten(1))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gamma = nn.Conv2d(1, 3, 2), nn.Parameter(torch.full((3, 1, 1), 0.5))
        self.head = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.gamma * self.conv(x)).flatten(1))


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 6), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.fft.rfft(torch.tanh(self.first(x))).abs())


CASES = {
    "bilinear": Case(
        about="nn.Bilinear, whose weight has two inputs and is refused by dropout unless its rate is 0.",
        network=Product,
        x=lambda: torch.randn(6, 3),
        drop_rate={"pair.*": 0.0, "*": 0.3},
    ),
    "row_biases": Case(
        about="Biases of shape [1, D].",
        network=Shifted,
        x=lambda: torch.randn(6, 3),
        drop_rate={"shift": 0.0, "*": 0.3},
    ),
    "layer_norm_matrix": Case(
        about="Layer normalisation over two axes, whose scale is a matrix and no map of units.",
        network=Normed,
        x=lambda: torch.randn(6, 2, 3),
        drop_rate={"norm.*": 0.0, "*": 0.3},
        rows=True,
    ),
    "layer_scale": Case(
        about="A convolution whose channels are scaled by a [C, 1, 1] parameter.",
        network=Scaled,
        x=lambda: torch.randn(6, 1, 3, 3),
        drop_rate={"gamma": 0.0, "*": 0.3},
        rows=True,
    ),
    "complex_inside": Case(
        about="A Fourier transform inside: complex activations between real layers.",
        network=Fourier,
        x=lambda: torch.randn(6, 3),
    ),
}
