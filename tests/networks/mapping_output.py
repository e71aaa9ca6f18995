"""A mapping of logits and an auxiliary loss out: output= takes the logits."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"loss": hidden.square().mean(), "logits": self.head(hidden)}


CASE = Case(
    network=Classifier,
    x=lambda: torch.randn(6, 3),
    likelihood=likelihoods.Categorical,
    options={"output": lambda out: out["logits"]},
    last="head.weight",
)
