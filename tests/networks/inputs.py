"""Networks with several inputs, or with inputs of other layouts."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case, Refused


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = self.embedding(ids) * mask.unsqueeze(-1)
        return self.head(torch.tanh(seen.sum(1) / mask.sum(1, keepdim=True)))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.left(x) + self.right(ids)))


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.each(x.transpose(0, 1))).sum(0))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(ids)).mean(1))


CASES = {
    "mapping_input": Case(
        about="x as a mapping of tensors, which the network takes by name.",
        network=Masked,
        x=lambda: {"ids": torch.randint(0, 7, (6, 4)), "mask": (torch.arange(4) <= torch.arange(6)[:, None]).float()},
        refused=(Refused("one input", what="compress"),),
    ),
    "tuple_input": Case(
        about="x as a tuple of two tensors.",
        network=Two,
        x=lambda: (torch.randn(6, 3), torch.randint(0, 5, (6,))),
        refused=(Refused("one input", what="compress"),),
    ),
    "time_first": Case(
        about="Tokens first, examples second: [T, N, D] inside.",
        network=TimeFirst,
        x=lambda: torch.randn(6, 4, 3),
        rows=True,
    ),
    "embedding_first": Case(
        about="An embedding first: its input units are words.",
        network=Words,
        x=lambda: torch.randint(0, 7, (6, 5)),
    ),
}
