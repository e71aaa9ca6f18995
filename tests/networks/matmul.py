"""A layer written as x @ W with W [in, out], with and without input_axes."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 5) / 2)
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(x @ self.w))


CASES = {
    "matmul_in_out": Case(
        network=Layer,
        x=lambda: torch.randn(6, 3),
        options={"input_axes": {"w": 0}},
        units={"w": (0, 1)},
        about="A layer written as x @ W with W [in, out].",
    ),
    "matmul_unsaid": Case(
        network=Layer,
        x=lambda: torch.randn(6, 3),
        refused=(Refused("w", guide="Bernoulli"),),
        about="x @ W with W [in, out] without input_axes, so the axis of the input units is unknown: dropout is refused.",
    ),
}
