"""An output with its first two derivatives by x, of torch.func.vjp, as differential equations need them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyrodrop.analysis.lab.networks import Case


class WithDerivatives(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 5), nn.Linear(5, 1)

    def u(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))  # type: ignore[no-any-return]

    def slope(self, x: Tensor) -> Tensor:
        u, pullback = torch.func.vjp(self.u, x)
        return pullback(torch.ones_like(u))[0]  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        slope, pullback = torch.func.vjp(self.slope, x)
        return torch.cat([self.u(x), slope, pullback(torch.ones_like(slope))[0]], -1)


CASE = Case(
    network=WithDerivatives,
    x=lambda: torch.randn(6, 1),
)
