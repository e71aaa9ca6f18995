"""Draws from a posterior with all that is known of each: its function, the likelihood of the data, and two densities.

    W_s ~ q                                                      s = 1 ... S
    f_s = network(x; W_s)                                        [S, N, D], in the units of y
    log_joint_s = ln p(W_s) + sum_n ln p(y_n | x_n, W_s)         both in nats, where the densities exist
    log_q_s     = ln q(W_s)

The importance ratio of the exact posterior to q is exp(log_joint - log_q) up to a constant. It does not exist where q has
atoms or lives on a line (theta = 0, points, type A), nor where the prior has no integral or no density of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.elbo import site_conventions
from pyrodrop.fitted import Fit
from pyrodrop.guides import Ensemble
from pyrodrop.models import NetworkModel

_BYTES = 256 * 2**20  # of weights and activations held at a time


@dataclass(frozen=True)
class Predictive:
    """Draws at N points, on the CPU: f ``[S, N, D]``, y ``[S, N, ...]``, ln p(y_n | f_s) ``[S, N]`` where y_n is known."""

    f: Tensor
    y: Tensor
    log_likelihood: Tensor | None = None


@dataclass(frozen=True)
class Draws:
    """S draws from one fit.

    Attributes:
        train, test: what they say at the training points and at others.
        sites: weights and latent hyperparameters, ``[S, ...]`` each, if they were asked for.
        log_joint, log_q: ``[S]``, in float64; None where one of them does not exist, for
        no_density: the reason; empty where they do.
    """

    train: Predictive
    test: Predictive | None
    sites: dict[str, Tensor]
    log_joint: Tensor | None
    log_q: Tensor | None
    no_density: str

    @property
    def log_ratio(self) -> Tensor | None:
        """log_joint - log_q: ``[S]``."""
        return None if self.log_joint is None or self.log_q is None else self.log_joint - self.log_q


def draws_of(
    fit: Fit,
    train: Dataset,
    test_x: Tensor | None = None,
    num_samples: int = 1000,
    *,
    keep: bool = False,
    seed: int = 0,
) -> Draws:
    """Draw weights and push them through the network, in chunks that fit into memory.

    Args:
        fit: of a model of `pyrodrop.models` with any guide.
        train: the data of the log likelihood and of log_joint: what the fit was trained on.
        test_x: further points.
        num_samples: S.
        keep: whether to return the weights.
        seed: of the draws; the caller's random state is left alone.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples is the number of draws and must be at least 1; got {num_samples}")
    model, guide = fit.model, fit.guide
    if not isinstance(model, NetworkModel):
        raise TypeError(f"draws are made of models of pyrodrop.models; got a {type(model).__name__}")
    x, y = train.x.to(fit.device), model.likelihood.as_target(train.y.to(fit.device))
    further = None if test_x is None else test_x.to(fit.device)
    points = len(x) + (0 if further is None else len(further))
    weights = model.weight_sites()
    size = sum(w.numel() + points * w.shape[0] for w in weights.values()) * next(iter(weights.values())).element_size()
    chunk = max(1, min(num_samples, _BYTES // size))
    reason = no_density(fit, train)
    parts: dict[str, list[Tensor]] = {}
    with seeded(seed, fit.device), torch.no_grad():
        for first in range(0, num_samples, chunk):
            sites, log_q = _draw(guide, x, min(chunk, num_samples - first), density=not reason)
            own = _predictive(model, sites, x, y)
            found = {f"train.{n}": v for n, v in vars(own).items() if v is not None}
            if further is not None:
                found |= {f"test.{n}": v for n, v in vars(_predictive(model, sites, further)).items() if v is not None}
            if log_q is not None:
                assert own.log_likelihood is not None
                found |= {"log_q": log_q, "log_joint": _log_prior(model, sites) + own.log_likelihood.double().sum(1)}
            if keep:
                found |= {f"sites.{n}": v for n, v in sites.items()}
            for name, value in found.items():
                parts.setdefault(name, []).append(value.cpu())
    whole = {name: torch.cat(values) for name, values in parts.items()}
    return Draws(
        train=Predictive(**_under(whole, "train.")),
        test=None if further is None else Predictive(**_under(whole, "test.")),
        sites=_under(whole, "sites."),
        log_joint=whole.get("log_joint"),
        log_q=whole.get("log_q"),
        no_density=reason,
    )


def no_density(fit: Fit, data: Dataset) -> str:
    """Why log p - log q does not exist for the weights of a fit; empty where it does."""
    model, guide = fit.model, fit.guide
    assert isinstance(model, NetworkModel)
    x, y = data.x[:1].to(fit.device), data.y[:1].to(fit.device)
    with seeded(0, fit.device):
        for site, meaning in site_conventions(model, guide, x, y).items():
            if meaning.kind == "up_to_constant":
                return f"log p - log q does not exist at {site!r}: {meaning.detail}"
        if isinstance(guide, Ensemble) and any(member.hyper_sites for member in guide.members):
            return "log q does not exist for an ensemble whose members have latent hyperparameters"
        try:
            with torch.no_grad():
                sites, _ = _draw(guide, x, 1, density=True)
                _log_prior(model, sites)
        except NotImplementedError as error:
            return f"log p - log q does not exist: {error}"
    return ""


def _draw(
    guide: Callable[..., Any], x: Tensor, count: int, *, density: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Weights and hyperparameters ``[count, ...]`` by site, and ln q of them all, ``[count]``."""
    if isinstance(guide, Ensemble):
        sites = guide.draw(count)
        return sites, _log_mixture(guide, sites) if density else None
    with poutine.block(), pyro.plate("draws", count):
        trace = poutine.trace(guide).get_trace(x)
    found: dict[str, Any] = dict(trace.nodes)
    drawn = {n: s for n, s in found.items() if s["type"] == "sample" and not site_is_subsample(s)}
    sites = {n: s["value"] for n, s in drawn.items()}
    return sites, _sum({n: s["fn"] for n, s in drawn.items()}, sites) if density else None


def _log_mixture(guide: Ensemble, sites: Mapping[str, Tensor]) -> Tensor:
    """ln mean_m q_m."""
    each = [_sum({n: member.posterior(n) for n in sites}, sites) for member in guide.members]
    return torch.logsumexp(torch.stack(each), 0) - math.log(len(each))


def _log_prior(model: NetworkModel, sites: Mapping[str, Tensor]) -> Tensor:
    """ln p of the weights and their latent hyperparameters, ``[S]``."""
    initial = model.weight_sites()
    count = len(next(iter(sites.values())))
    with poutine.block(), pyro.plate("draws", count), poutine.trace() as capture, poutine.condition(data=dict(sites)):
        for name, prior in model.priors.items():
            pyro.sample(name, prior.for_site(name, initial[name]))
    nodes: dict[str, Any] = dict(capture.trace.nodes)
    return _sum({name: nodes[name]["fn"] for name in sites}, sites)


def _sum(laws: Mapping[str, TorchDistribution], sites: Mapping[str, Tensor]) -> Tensor:
    """Log density of all sites together, ``[S]`` in float64."""
    return torch.stack([laws[name].log_prob(value).double() for name, value in sites.items()]).sum(0)


def _predictive(model: NetworkModel, sites: Mapping[str, Tensor], x: Tensor, y: Tensor | None = None) -> Predictive:
    output = model.outputs({name: sites[name] for name in model.weight_sites()}, x)
    law = model.likelihood(output, model.targets)
    f = model.likelihood.location(output, model.targets)
    return Predictive(f=f, y=law.sample(), log_likelihood=None if y is None else law.log_prob(y))


def _under(values: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
