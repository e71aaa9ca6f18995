"""posteriors: independent normal weights and biases, sampled once per minibatch, log q - log p of the sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.analysis.benchmarks.networks import BATCH, Network, Steps
from pyrodrop.analysis.benchmarks.peers.objective import kl_weight


def mean_field(network: Network) -> Steps:
    """Steps of `posteriors.vi.diag`, in place, with TorchOpt's Adam; prior N(0, 1)."""
    import posteriors
    import torchopt

    net, weight = network.build(nn.Identity), kl_weight(network)
    function = posteriors.model_to_function(net)

    def log_posterior(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = function(parameters, batch[0])
        log_prior = posteriors.diag_normal_log_prob(parameters)
        return weight * log_prior - network.loss(outputs, batch[1]), torch.tensor([])

    transform = posteriors.vi.diag.build(
        log_posterior, torchopt.adam(lr=1e-3), temperature=weight, init_log_sds=-3.0, stl=False
    )
    state: Any = transform.init(dict(net.named_parameters()))

    def steps() -> None:
        nonlocal state
        for _ in range(network.steps):
            rows = torch.randint(len(network.x), (BATCH,))
            state, _ = transform.update(state, (network.x[rows], network.y[rows]), inplace=False)

    return steps, lambda: [*state.params.values(), *state.log_sd_diag.values()]
