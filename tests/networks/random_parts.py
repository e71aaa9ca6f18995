"""Networks that draw random numbers or count their calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(torch.tanh(self.first(x)), 0.2, self.training))


class DropPath(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.new_empty(len(x), 1).bernoulli_(0.9) / 0.9 if self.training else x


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.path = DropPath()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        return self.head(h + self.path(torch.tanh(self.branch(h))))


class Warming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.calls = nn.Linear(3, 5), nn.Linear(5, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return self.head(torch.tanh(self.first(x))) * (1.0 if not self.training else min(1.0, self.calls / 4))


CASES = {
    "functional_dropout": Case(
        about="F.dropout in forward: noise that is not the guide's, refused.",
        network=Noisy,
        x=lambda: torch.randn(6, 3),
        refused=(Refused("noise"),),
    ),
    "drop_path": Case(
        about="Drop path: whole branches left out at random in training, refused.",
        network=Residual,
        x=lambda: torch.randn(6, 3),
        refused=(Refused("noise"),),
    ),
    "counter": Case(
        about="A counter in forward that fades a branch in: a trace would freeze it.",
        network=Warming,
        x=lambda: torch.randn(6, 3),
        refused=(
            Refused("a call changes", what="replicates"),
            Refused("a call changes", what="checkpoint"),
        ),
    ),
}
