"""Mixtures: of Gaussians, with the assignments enumerated by Pyro or summed over in closed form, and of topics."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import config_enumerate
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyrodrop.analysis.lab.programs.program import Parts

COMPONENTS, TOPICS = 3, 5


def _points(dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(5)
    centers = torch.tensor([[-2.0, 0.0], [1.0, 2.0], [2.0, -2.0]])
    z = torch.randint(COMPONENTS, (300,), generator=random)
    return (centers[z] + 0.7 * torch.randn(300, 2, generator=random)).to(dtype)


def mixture(dtype: torch.dtype) -> Parts:
    """A mixture of Gaussians whose assignments `TraceEnum_ELBO` enumerates."""

    @config_enumerate
    def model(x: Tensor) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(x.new_ones(COMPONENTS)))
        with pyro.plate("components", COMPONENTS):
            center = pyro.sample("center", dist.Normal(x.new_zeros(x.shape[1]), 3.0).to_event(1))
            scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 0.5))
        with pyro.plate("rows", len(x)):
            z = pyro.sample("z", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(center[z], scale[z].unsqueeze(-1)).to_event(1), obs=x)

    return model, AutoNormal(poutine.block(model, hide=["z"]), init_loc_fn=_apart), {"x": _points(dtype)}


def marginal_mixture(dtype: torch.dtype) -> Parts:
    """The same mixture as one density of every point."""

    def model(x: Tensor) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(x.new_ones(COMPONENTS)))
        with pyro.plate("components", COMPONENTS):
            center = pyro.sample("center", dist.Normal(x.new_zeros(x.shape[1]), 3.0).to_event(1))
            scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 0.5))
        with pyro.plate("rows", len(x)):
            parts = dist.Normal(center, scale.unsqueeze(-1)).to_event(1)
            pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)

    return model, AutoNormal(model, init_loc_fn=_apart), {"x": _points(dtype)}


def _apart(site: dict[str, Any]) -> Tensor:
    """Initial values, with different centres for different components."""
    value: Tensor = site["fn"].mean
    return (
        value + torch.eye(*value.shape, dtype=value.dtype, device=value.device) if site["name"] == "center" else value
    )


def topics(dtype: torch.dtype) -> Parts:
    """Latent Dirichlet allocation of word counts, with the topic of every word summed out.

        counts_d ~ Multinomial(theta_d beta),   theta_d ~ Dirichlet   [topics],   beta_k ~ Dirichlet   [vocabulary]

    Blei, Ng & Jordan (2003), Latent Dirichlet Allocation.
    """
    documents, vocabulary, words = 100, 60, 80
    random = torch.Generator().manual_seed(6)
    shares = torch.rand(documents, TOPICS, generator=random) ** 4
    of_topic = torch.eye(TOPICS).repeat_interleave(vocabulary // TOPICS, 1) + 0.05
    drawn = torch.multinomial(shares @ of_topic, words, replacement=True, generator=random)
    counts = torch.zeros(documents, vocabulary, dtype=dtype).scatter_add_(
        1, drawn, torch.ones(drawn.shape, dtype=dtype)
    )

    def model(counts: Tensor) -> None:
        with pyro.plate("topics", TOPICS):
            beta = pyro.sample("beta", dist.Dirichlet(counts.new_full((counts.shape[1],), 0.5)))
        with pyro.plate("documents", len(counts)):
            theta = pyro.sample("theta", dist.Dirichlet(counts.new_full((TOPICS,), 0.5)))
            pyro.sample("counts", dist.Multinomial(words, probs=theta @ beta), obs=counts)

    def guide(counts: Tensor) -> None:
        first = 1 + counts[:: documents // TOPICS]  # topics start from the words of some documents
        beta = pyro.param("beta_concentration", lambda: first, constraint=constraints.positive)
        ones = counts.new_ones(len(counts), TOPICS)
        theta = pyro.param("theta_concentration", lambda: ones, constraint=constraints.positive)
        with pyro.plate("topics", TOPICS):
            pyro.sample("beta", dist.Dirichlet(beta))
        with pyro.plate("documents", len(counts)):
            pyro.sample("theta", dist.Dirichlet(theta))

    return model, guide, {"counts": counts}
