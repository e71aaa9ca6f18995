"""torchbnn: independent normal weights and biases, sampled once per minibatch, the exact summed KL divergence."""

from __future__ import annotations

from torch import nn

from pyrodrop.analysis.benchmarks.networks import Network, Steps
from pyrodrop.analysis.benchmarks.peers.objective import converted, steps_of

MEAN, SCALE = 0.0, 0.1  # of the prior; the posterior's scales start there as well


def mean_field(network: Network) -> Steps:
    """Steps of the network with its layers."""
    from torchbnn import BayesConv2d, BayesLinear, BKLLoss

    net = converted(
        network,
        {
            nn.Linear: lambda d: BayesLinear(MEAN, SCALE, d.in_features, d.out_features),
            nn.Conv2d: lambda c: BayesConv2d(MEAN, SCALE, c.in_channels, c.out_channels, c.kernel_size),
        },
    )
    divergence = BKLLoss(reduction="sum")
    return steps_of(network, net, lambda: divergence(net))
