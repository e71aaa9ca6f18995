"""Little networks, models and programs that several files of tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyrodrop import likelihoods, models, priors
from pyrodrop.likelihoods import Likelihood
from pyrodrop.scaling import Standardize


def normal(*shape: int, seed: int, dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def linear(likelihood: Any, inputs: int = 2, outputs: int = 1, dtype: torch.dtype = torch.float64) -> Any:
    """y = W x without a bias, W ~ N(0, 1)."""
    net = nn.Linear(inputs, outputs, bias=False, dtype=dtype)
    return models.from_module(net, priors.Gaussian(1.0), likelihood)


def mlp(*widths: int, activation: str = "relu", precision: float = 4.0, **changed: Any) -> models.MLP:
    """A fully connected network with Gaussian priors of scale 1 and a Gaussian likelihood."""
    parts: dict[str, Any] = {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(precision)}
    return models.MLP(widths, activation, **{**parts, **changed})


def brought(net: nn.Module, **settings: Any) -> models.NetworkModel:
    """A network as users bring it, with Gaussian priors of scale 1 and precision 4."""
    return models.from_module(net, **{"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(4.0), **settings})


def tokens(outputs: int) -> nn.Module:
    """The same map of every token, [N, T, 3] -> [N, T, outputs]."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


class Heavy(priors.Prior):
    """w / scale ~ t(3), a prior as users write it, without a divergence in closed form."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def expand(self, *shape: int, like: Tensor | None = None) -> Any:
        zero = torch.zeros(shape) if like is None else torch.zeros_like(like)
        return dist.StudentT(3.0, zero, self.scale).to_event(len(shape))

    def describe(self) -> str:
        return f"Heavy(scale={self.scale:g})"


class Counts(Likelihood):
    """y ~ Poisson(exp f), one count per example: whole numbers that name no class."""

    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.Poisson(output.squeeze(-1).exp())

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return output.exp()


class Own(nn.Module):
    """A network written as a function of its layers."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.own = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x)


def line(x: Tensor, y: Tensor | None = None, size: int | None = None) -> Any:
    """A Pyro program: a slope and a noise, on all rows or on `size` of them."""
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(x), subsample_size=size) as rows:
        return pyro.sample("y", dist.Normal(slope * x[rows], noise), obs=None if y is None else y[rows])
