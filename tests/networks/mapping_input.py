"""x as a mapping of tensors, which the network takes by name."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = self.embedding(ids) * mask.unsqueeze(-1)
        return self.head(torch.tanh(seen.sum(1) / mask.sum(1, keepdim=True)))


CASE = Case(
    network=Masked,
    x=lambda: {"ids": torch.randint(0, 7, (6, 4)), "mask": (torch.arange(4) <= torch.arange(6)[:, None]).float()},
    last="head.weight",
)
