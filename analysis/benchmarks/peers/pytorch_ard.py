"""pytorch-ard: variational dropout with a rate per weight, local reparameterisation, Molchanov's approximate KL divergence.

Its convolutions have no bias.
"""

from __future__ import annotations

from torch import nn

from pyrodrop.analysis.benchmarks.networks import Network, Steps
from pyrodrop.analysis.benchmarks.peers.objective import converted, steps_of


def variational(network: Network) -> Steps:
    """Steps of the network with its layers."""
    from torch_ard import Conv2dARD, LinearARD, get_ard_reg

    net = converted(
        network,
        {
            nn.Linear: lambda d: LinearARD(d.in_features, d.out_features),
            nn.Conv2d: lambda c: Conv2dARD(c.in_channels, c.out_channels, c.kernel_size),
        },
    )
    return steps_of(network, net, lambda: get_ard_reg(net))
