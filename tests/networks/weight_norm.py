"""Layers under torch.nn.utils.parametrizations.weight_norm, which are plain layers in the model's copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from pyrodrop.analysis.lab.networks import Case


class Normed(Case):
    """The reference is the network without weight norm; the model is made of it with weight norm."""

    def model(self, network: nn.Module) -> Any:
        weight_norm(network.get_submodule("0"))
        weight_norm(network.get_submodule("2"), dim=None)  # type: ignore[arg-type]
        return super().model(network)


CASE = Normed(
    network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
    x=lambda: torch.randn(6, 3),
)
