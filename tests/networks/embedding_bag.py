"""nn.EmbeddingBag, the mean over the words of an example."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop.analysis.lab.networks import Case

CASE = Case(
    network=lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.Tanh(), nn.Linear(4, 2)),
    x=lambda: torch.randint(0, 7, (6, 5)),
    last="2.weight",
)
