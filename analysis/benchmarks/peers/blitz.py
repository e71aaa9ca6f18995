"""BLiTZ: independent normal weights and biases, sampled once per minibatch.

Its KL term is log q - log p of the sample, with 1e-6 added to the prior's density and 0.5 per entry subtracted in both sums.
"""

from __future__ import annotations

from torch import nn

from pyrodrop.analysis.benchmarks.networks import Network, Steps
from pyrodrop.analysis.benchmarks.peers.objective import converted, steps_of


def mean_field(network: Network) -> Steps:
    """Steps of the network with its layers, prior N(0, 1)."""
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    net = converted(
        network,
        {
            nn.Linear: lambda d: BayesianLinear(d.in_features, d.out_features, prior_sigma_1=1.0),
            nn.Conv2d: lambda c: BayesianConv2d(c.in_channels, c.out_channels, c.kernel_size, prior_sigma_1=1.0),
        },
    )
    return steps_of(network, net, lambda: kl_divergence_from_nn(net))
