"""Fixtures of the tests of the core."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyrodrop import guides, likelihoods, models, priors


@pytest.fixture
def linear(float64: None) -> tuple[models.NetworkModel, guides.MeanField]:
    """Linear regression of three inputs with precision 2 and prior scale .8, and a mean field: ELBO in closed form."""
    torch.manual_seed(5)
    net = nn.Linear(3, 1, bias=False)
    model = models.from_module(net, prior=priors.Gaussian(0.8), likelihood=likelihoods.Gaussian(2.0)).double()
    return model, guides.MeanField(model, init_scale=0.4).double()
