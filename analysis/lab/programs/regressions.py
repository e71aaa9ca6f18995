"""Regressions: hierarchical, eight schools, sparse, logistic, by a network, by a sparse Gaussian process."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn

from pyrodrop.analysis.lab.programs.program import Parts


def hierarchical(dtype: torch.dtype) -> Parts:
    """Intercepts and slopes that vary by group, as for radon in the houses of counties.

    Gelman & Hill (2007), Data Analysis Using Regression and Multilevel/Hierarchical Models, ch. 12. Data are simulated.
    """
    groups, rows = 85, 900
    random = torch.Generator().manual_seed(1)
    group = torch.randint(groups, (rows,), generator=random)
    floor = torch.bernoulli(torch.full((rows,), 0.2), generator=random).to(dtype)
    intercepts = 1.5 + 0.3 * torch.randn(groups, generator=random).to(dtype)
    y = intercepts[group] - 0.7 * floor + 0.7 * torch.randn(rows, generator=random).to(dtype)

    def model(group: Tensor, floor: Tensor, y: Tensor) -> None:
        zero, one = y.new_zeros(()), y.new_ones(())
        intercept_mean = pyro.sample("intercept_mean", dist.Normal(zero, 5.0))
        slope_mean = pyro.sample("slope_mean", dist.Normal(zero, 5.0))
        intercept_scale = pyro.sample("intercept_scale", dist.HalfCauchy(one))
        slope_scale = pyro.sample("slope_scale", dist.HalfCauchy(one))
        noise = pyro.sample("noise", dist.HalfNormal(one))
        with pyro.plate("groups", groups):
            intercept = pyro.sample("intercept", dist.Normal(intercept_mean, intercept_scale))
            slope = pyro.sample("slope", dist.Normal(slope_mean, slope_scale))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(intercept[group] + slope[group] * floor, noise), obs=y)

    return model, AutoNormal(model), {"group": group, "floor": floor, "y": y}


def schools(dtype: torch.dtype) -> Parts:
    """Eight schools in the non-centred parametrisation: effects of coaching with their standard errors.

    Rubin (1981), Estimation in Parallel Randomized Experiments.
    """
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=dtype)
    sigma = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=dtype)

    def model(y: Tensor, sigma: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 5.0))
        scale = pyro.sample("scale", dist.HalfCauchy(y.new_full((), 5.0)))
        with pyro.plate("schools", len(y)):
            offset = pyro.sample("offset", dist.Normal(y.new_zeros(()), 1.0))
            effect = pyro.deterministic("effect", mean + scale * offset)
            pyro.sample("y", dist.Normal(effect, sigma), obs=y)

    return model, AutoMultivariateNormal(model), {"y": y, "sigma": sigma}


def sparse(dtype: torch.dtype) -> Parts:
    """Linear regression under the horseshoe prior.

        w_k ~ Normal(0, tau lambda_k),   tau ~ HalfCauchy(0.1),   lambda_k ~ HalfCauchy(1)

    Carvalho, Polson & Scott (2010), The horseshoe estimator for sparse signals. Three of 30 weights are not 0.
    """
    random = torch.Generator().manual_seed(2)
    x = torch.randn(100, 30, generator=random).to(dtype)
    y = x[:, :3] @ x.new_tensor([2.0, -1.5, 1.0]) + 0.5 * torch.randn(100, generator=random).to(dtype)

    def model(x: Tensor, y: Tensor) -> None:
        tau = pyro.sample("tau", dist.HalfCauchy(x.new_full((), 0.1)))
        noise = pyro.sample("noise", dist.HalfNormal(x.new_ones(())))
        width = x.shape[1]
        shrinkage = pyro.sample("shrinkage", dist.HalfCauchy(x.new_ones(width)).to_event(1))
        w = pyro.sample("w", dist.Normal(x.new_zeros(width), tau * shrinkage).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    return model, AutoLowRankMultivariateNormal(model, rank=4), {"x": x, "y": y}


def logistic(dtype: torch.dtype) -> Parts:
    """Logistic regression with a guide of one's own and a closed KL divergence."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(1000, 10, generator=random).to(dtype)
    y = torch.bernoulli((x @ torch.linspace(-1, 1, 10, dtype=dtype)).sigmoid(), generator=random)

    def model(x: Tensor, y: Tensor) -> None:
        bias = pyro.sample("bias", dist.Normal(x.new_zeros(()), 2.0))
        w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w + bias), obs=y)

    def guide(x: Tensor, **_: Any) -> None:
        loc = pyro.param("loc", lambda: x.new_zeros(x.shape[1]))
        scale = pyro.param("scale", lambda: x.new_full((x.shape[1],), 0.1), constraint=constraints.positive)
        bias_loc = pyro.param("bias_loc", lambda: x.new_zeros(()))
        bias_scale = pyro.param("bias_scale", lambda: x.new_full((), 0.1), constraint=constraints.positive)
        pyro.sample("bias", dist.Normal(bias_loc, bias_scale))
        pyro.sample("w", dist.Normal(loc, scale).to_event(1))

    return model, guide, {"x": x, "y": y}


class Network(PyroModule):
    """A network with a normal prior on its weights, as modules of Pyro."""

    def __init__(self, inputs: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        layer: Any = PyroModule[nn.Linear]
        self.first: Any = layer(inputs, width, dtype=dtype)
        self.last: Any = layer(width, 1, dtype=dtype)
        zeros = torch.zeros(width, inputs, dtype=dtype)
        self.first.weight = PyroSample(dist.Normal(zeros, 1.0).to_event(2))
        self.last.weight = PyroSample(dist.Normal(zeros.new_zeros(1, width), 1.0).to_event(2))
        self.noise: Any = PyroParam(zeros.new_ones(()), constraints.positive)

    def forward(self, x: Tensor, y: Tensor) -> None:
        f = self.last(self.first(x).tanh()).squeeze(-1)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(f, self.noise), obs=y)


class NetworkGuide(PyroModule):
    """Independent normals for the weights of `Network`."""

    def __init__(self, inputs: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(6)
        for name, shape in {"first": (width, inputs), "last": (1, width)}.items():
            start = 0.5 * torch.randn(shape, generator=random).to(dtype)
            setattr(self, f"{name}_loc", PyroParam(start, event_dim=2))
            setattr(self, f"{name}_scale", PyroParam(0.1 * torch.ones_like(start), constraints.positive, event_dim=2))

    def forward(self, x: Tensor, y: Tensor) -> None:
        pyro.sample("first.weight", dist.Normal(self.first_loc, self.first_scale).to_event(2))
        pyro.sample("last.weight", dist.Normal(self.last_loc, self.last_scale).to_event(2))


def network(dtype: torch.dtype) -> Parts:
    """A Bayesian neural network whose model and guide are `PyroModule`s."""
    random = torch.Generator().manual_seed(5)
    x = torch.randn(100, 2, generator=random).to(dtype)
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(100, generator=random).to(dtype)
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        return Network(2, 20, dtype), NetworkGuide(2, 20, dtype), {"x": x, "y": y}


def saas(dtype: torch.dtype) -> Parts:
    """A Gaussian process of 10 inputs with sparse inverse squared length scales.

        k(x, x') = v exp(-sum_d rho_d (x_d - x'_d)^2 / 2),   rho_d ~ HalfCauchy(tau),   tau ~ HalfCauchy(0.1)

    Eriksson & Jankowiak (2021), High-dimensional Bayesian optimization with sparse axis-aligned subspaces. y depends on two.
    """
    random = torch.Generator().manual_seed(4)
    x = torch.rand(50, 10, generator=random).to(dtype)
    y = (6 * x[:, 0]).sin() + 2 * (x[:, 1] - 0.5) ** 2 + 0.1 * torch.randn(50, generator=random).to(dtype)

    def model(x: Tensor, y: Tensor) -> None:
        one = x.new_ones(())
        variance = pyro.sample("variance", dist.LogNormal(0 * one, 1.0))
        noise = pyro.sample("noise", dist.LogNormal(-4 * one, 1.0))
        tau = pyro.sample("tau", dist.HalfCauchy(0.1 * one))
        with pyro.plate("inputs", x.shape[1]):
            rho = pyro.sample("rho", dist.HalfCauchy(tau))
        squares = ((x[:, None] - x) ** 2 * rho).sum(-1)
        kernel = variance * (-squares / 2).exp() + (noise + 1e-6) * torch.eye(len(x), dtype=x.dtype, device=x.device)
        pyro.sample("y", dist.MultivariateNormal(x.new_zeros(len(x)), scale_tril=torch.linalg.cholesky(kernel)), obs=y)

    return model, AutoNormal(model), {"x": x, "y": y - y.mean()}
