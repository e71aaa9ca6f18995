"""Simulation-based calibration: the rank of the truth among draws is uniform (Talts et al. 2018)."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import pyrodrop
from pyrodrop import likelihoods, priors
from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.density import network_density
from pyrodrop.sampling.hmc import HMC

COUNT, CHAINS, KEPT = 200, 21, 3  # data sets; 63 draws of each, so that ranks are in 0 ... 63
PRECISION = 25.0


def network(q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """1-8-1 with tanh, written out, for weights ``[S, 25]``: f ``[S, N]``."""
    w0, b0, w1, b1 = q.split([8, 8, 8, 1], -1)
    return torch.einsum("snk,sk->sn", torch.tanh(x[None] * w0[:, None] + b0[:, None]), w1) + b1


@pytest.mark.slow
def test_ranks_of_functions_and_of_the_likelihood_are_uniform() -> None:
    x, points = torch.linspace(-1, 1, 20)[:, None], torch.tensor([[-1.5], [0.1], [2.0]])
    one = priors.Gaussian(1.0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    model = pyrodrop.models.from_module(net, prior=one, bias_prior=one, likelihood=likelihoods.Gaussian(PRECISION))
    density = network_density(model, (x, torch.zeros(20, 1)))
    compiled = CompiledDensity(density, CHAINS, "compiled")
    ranks, generator = [], torch.Generator().manual_seed(11)
    for _ in range(COUNT):
        truth = torch.randn(1, 25, generator=generator)
        y = network(truth, x) + torch.randn(1, 20, generator=generator) / PRECISION**0.5
        density.arguments.args[1].copy_(y.T)  # which the compiled step reads
        moving = HMC(compiled, compiled.from_prior(generator), generator, 150, target_acceptance=0.651, max_steps=30)
        drawn = moving.run(4 * KEPT)[0][:, 3::4].flatten(0, 1)
        own = [
            torch.cat([network(w, points), -((network(w, x) - y) ** 2).sum(1, keepdim=True)], 1) for w in (drawn, truth)
        ]
        ranks.append((own[0] < own[1]).sum(0).tolist())
    p_values = []
    for column in np.array(ranks).T:
        observed = np.histogram(column, bins=8, range=(0, CHAINS * KEPT + 1))[0]
        p_values.append(stats.chisquare(observed).pvalue)
    assert min(p_values) > 1e-3 / len(p_values)
