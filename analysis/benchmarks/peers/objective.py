"""Shared code of the peers in PyTorch: a network with their layers, the weight of the KL divergence, and the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.analysis.benchmarks.networks import BATCH, Network, Steps


def kl_weight(network: Network) -> float:
    """Weight of the KL divergence relative to `network.loss`: 1 / N, or 2 / N for a squared error without the factor 1/2."""
    return (2.0 if isinstance(network.loss, nn.MSELoss) else 1.0) / len(network.x)


def converted(network: Network, layers: Mapping[type[nn.Module], Callable[[Any], nn.Module]]) -> nn.Sequential:
    """The network with every layer of these types replaced by the result of the function."""
    made = []
    for layer in network.build(nn.Identity):
        make = layers.get(type(layer))
        made.append(layer if make is None else make(layer))
    return nn.Sequential(*made)


def steps_of(network: Network, net: nn.Module, divergence: Callable[[], Tensor]) -> Steps:
    """Steps on the loss of one forward pass plus the weighted KL divergence, which is read after the pass."""
    optimizer, weight = torch.optim.Adam(net.parameters()), kl_weight(network)

    def steps() -> None:
        for _ in range(network.steps):
            rows = torch.randint(len(network.x), (BATCH,))
            optimizer.zero_grad()
            loss = network.loss(net(network.x[rows]), network.y[rows])
            (loss + weight * divergence()).backward()
            optimizer.step()

    return steps, list(net.parameters())
