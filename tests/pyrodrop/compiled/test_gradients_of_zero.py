"""A gradient that is 0 but for rounding, as of the bias of attention's keys, does not keep a network from a trace."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors


class Attention(nn.Module):
    """A softmax over the keys does not see a shift of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 2)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_is_zero_but_for_rounding_is_traced(dtype: torch.dtype) -> None:
    model = models.from_module(Attention().to(dtype), priors.Gaussian(), likelihoods.Gaussian(4.0))
    data = (torch.randn(8, 3, 4, dtype=dtype), torch.randn(8, 1, dtype=dtype))
    settings = {"steps": 3, "engine": "traced", "progress": False}
    assert pyrodrop.fit(model, guides.MeanField(model), data, **settings).settings["engine"] == "traced"
    many = pyrodrop.fit_replicates(model, guides.MeanField(model), data, count=2, **settings)
    assert many[0].settings["engine"] == "traced"
