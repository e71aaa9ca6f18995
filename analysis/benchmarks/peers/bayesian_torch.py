"""bayesian-torch: independent normal weights and biases, sampled once per minibatch.

Its KL divergence of a tensor is the mean over the entries, not the sum: a different bound with the same work.
"""

from __future__ import annotations

from torch import nn

from pyrodrop.analysis.benchmarks.networks import Network, Steps
from pyrodrop.analysis.benchmarks.peers.objective import steps_of

PRIOR = {
    "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
    "type": "Reparameterization", "moped_enable": False,
}  # fmt: skip


def mean_field(network: Network) -> Steps:
    """Steps of the network that `dnn_to_bnn` converts."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = network.build(nn.Identity)
    dnn_to_bnn(net, PRIOR)
    return steps_of(network, net, lambda: get_kl_loss(net))
