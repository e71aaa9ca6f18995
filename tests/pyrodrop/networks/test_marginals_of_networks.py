"""Networks that treat their weights unusually have the gradients of whole weights, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.reparam import LocalReparam, PerExampleReparam, reparameterize
from pyrodrop.training.elbo import elbo_terms

X = torch.tensor([[0.5, -1.0], [1.5, 0.3], [-0.7, 0.8]])


class Two(nn.Module):
    """Two dense layers."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, 6), nn.Linear(6, 1)

    def energy(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Scaled(Two):
    """A weight that is first used where no gradient is computed."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = 1 + self.first(x).square().mean(1, keepdim=True)
        return self.last(torch.tanh(self.first(x) / scale))


def made(network: Callable[[], nn.Module]) -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    own = network()
    return own, models.from_module(own, priors.Gaussian(1.0), likelihoods.Gaussian(10.0))


@pytest.mark.parametrize("strategy", [LocalReparam(), PerExampleReparam()])
def test_a_weight_that_is_first_used_without_gradients_has_one(strategy: Any) -> None:
    """At scale 1e-6 every strategy has the gradient of the mean weights up to 1e-4."""
    own, model = made(Scaled)
    guide = guides.MeanField(model, init_scale=1e-6)
    y = torch.ones(3, 1)
    elbo_terms(*reparameterize(model, guide, strategy), X, y).nll.backward()
    weights = {name: value.detach().requires_grad_() for name, value in model.weight_sites().items()}
    loss = 5.0 * (functional_call(own, weights, (X,)) - y).square().sum()  # half the precision
    want = torch.autograd.grad(loss, list(weights.values()))
    for name, value in zip(weights, want, strict=True):
        torch.testing.assert_close(guide.loc[name].grad, value, rtol=1e-3, atol=1e-3 * float(value.abs().max()))


class Routed(Two):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.energy(x) * (1 + self.gate(x).argmax(1, keepdim=True))


class Sparse(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2, 2, 2).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return self.energy(x)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        pytest.param(
            Routed,
            r"a prior but no gradient: gate\.weight\. .*in steps",
            marks=pytest.mark.unshifted,  # of other weights, no change may move a row to the other expert
        ),
        (Sparse, r"must be dense tensors.*got mask"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused_with_the_reason(
    network: Callable[[], nn.Module], message: str
) -> None:
    def attempt() -> None:
        _, model = made(network)
        pyrodrop.fit(model, guides.MeanField(model), (X, torch.ones(3, 1)), steps=1)

    with pytest.raises(ValueError, match=message):
        attempt()
