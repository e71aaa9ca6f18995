"""Fixtures of the tests of the core."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors


@pytest.fixture
def linear(float64: None) -> tuple[models.NetworkModel, guides.MeanField]:
    """Linear regression of three inputs with precision 2 and prior scale .8, and a mean field: ELBO in closed form."""
    torch.manual_seed(5)
    net = nn.Linear(3, 1, bias=False)
    model = models.from_module(net, prior=priors.Gaussian(0.8), likelihood=likelihoods.Gaussian(2.0)).double()
    return model, guides.MeanField(model, init_scale=0.4).double()


@pytest.fixture
def cut_fit() -> Callable[..., pyrodrop.Fit]:
    """A fit with biases, of whose weights some are cut, and some units altogether."""

    def make(net: nn.Module, seed: int = 0, share: float = 0.5, dead: float = 0.5, **settings: Any) -> pyrodrop.Fit:
        torch.manual_seed(seed)
        model = models.from_module(
            net, prior=priors.ARD(), likelihood=settings.pop("likelihood", likelihoods.Categorical()), **settings
        )
        with torch.no_grad():
            for bias in model.free.parameters():
                bias.normal_()
        guide = guides.ARDDropout(model)
        with torch.no_grad():
            for name in guide.sites:
                gone = torch.rand_like(guide.loc[name]) < share
                for axis in (0, 1)[: guide.loc[name].dim()]:
                    some = torch.rand(guide.loc[name].shape[axis]) < dead
                    gone |= some.reshape(-1, *(1,) * (gone.dim() - 1 - axis))
                unconstrained: Any = guide.log_variance[name]
                unconstrained.unconstrained().copy_(guide.loc[name].square().log() + torch.where(gone, 5.0, -5.0))
        return pyrodrop.Fit(model, guide, None, torch.tensor([[1.0, 1.0, 1.0]]), {})

    return make


@pytest.fixture
def oracle() -> Callable[..., Tensor]:
    """The user's own network at the guide's means, those of ln alpha >= 3 at 0."""

    def outputs(net: nn.Module, fit: Any, *x: Tensor) -> Tensor:
        kept = {n: fit.guide.loc[n].detach() * (fit.guide.log_alpha(n).detach() < 3) for n in fit.guide.sites}
        return _outputs(net, fit, kept, x)

    return outputs


def _outputs(net: nn.Module, fit: Any, weights: dict[str, Tensor], x: tuple[Tensor, ...]) -> Tensor:
    free = {n: fit.model.free[n].detach() for n in fit.model.free}
    with torch.no_grad():
        network = copy.deepcopy(net).eval()
        return functional_call(network, {**free, **weights}, tuple(tensor.clone() for tensor in x))  # type: ignore[no-any-return]
