"""The two terms of the ELBO, by one draw from the guide.

    ELBO = E_q[sum_n ln p(y_n | x_n, W)] - KL(q || prior) = E_q[-nll] - kl

A minibatch's nll is scaled to the data set by the model's plate. Kingma, Salimans & Welling (2015), eq. 2-3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.divergences import Convention, convention, divergence, worst
from pyrodrop.reparam.lazy import LazyLaw


class Terms(NamedTuple):
    """One draw's terms, in nats for the whole data set; scalars, differentiable.

    Attributes:
        nll: minus the log likelihood.
        kl_weights: divergence of the weights.
        kl_hyper: divergence of the priors' hyperparameters, where they are latent.
    """

    nll: Tensor
    kl_weights: Tensor
    kl_hyper: Tensor

    @property
    def kl(self) -> Tensor:
        """The whole divergence."""
        return self.kl_weights + self.kl_hyper

    @property
    def loss(self) -> Tensor:
        """Minus the ELBO's estimate."""
        return self.nll + self.kl


def elbo_terms(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Terms:
    """Minus the log likelihood at one draw from the guide, and the divergence of its factors from the priors.

    Their sum is the loss of Pyro's `TraceMeanField_ELBO`, in parts. Handlers around model or guide (scale, mask,
    condition) act as they do there.

    Raises:
        ValueError: a weight that the model draws and the guide does not.
    """
    nll, kl_weights, kl_hyper = _zero(), _zero(), _zero()
    hyper = _hyperparameters(model)
    for site, q in _sites(model, guide, args, kwargs):
        if q is None:
            nll = nll - scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]).sum()
            continue
        kl = scale_and_mask(_divergence(q, site), q["scale"], q["mask"]).sum()
        if site["name"] in hyper:
            kl_hyper = kl_hyper + kl
        else:
            kl_weights = kl_weights + kl
    return Terms(nll, kl_weights, kl_hyper)


def elbo_convention(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Convention:
    """How far the divergence can be trusted: the worst of the guide's factors."""
    return worst(site_conventions(model, guide, *args, **kwargs).values())


def site_conventions(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
) -> dict[str, Convention]:
    """How far the divergence of every factor can be trusted, by site."""
    with torch.no_grad():
        sites = _sites(model, guide, args, kwargs)
    return {site["name"]: convention(q["fn"], site["fn"]) for site, q in sites if q is not None}


def _sites(
    model: Callable[..., Any], guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """The model's sample sites, each with the guide's of that name; None for an observed one."""
    guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
    sites: list[tuple[Any, Any]] = []
    for name, site in model_trace.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if not site["is_observed"] and name not in guide_trace:
            raise ValueError(
                f"the guide has no factor for {name!r}, which the model draws; it has {list(guide_trace.nodes)}"
            )
        sites.append((site, None if site["is_observed"] else guide_trace.nodes[name]))
    return sites


def _divergence(q: Any, site: Any) -> Tensor:
    if isinstance(q["fn"], LazyLaw) and isinstance(site["fn"], LazyLaw):
        return q["fn"].divergence(site["fn"])
    return divergence(q["fn"], site["fn"], q["value"])


def _hyperparameters(model: Callable[..., Any]) -> frozenset[str]:
    """Names of the latent hyperparameters of a model that knows them."""
    while not hasattr(model, "hyper_sites"):
        if not hasattr(model, "fn"):  # not a model of ours in Pyro's handlers
            return frozenset()
        model = model.fn
    return frozenset(site for sites in model.hyper_sites().values() for site in sites)


def _zero() -> Tensor:
    return torch.zeros(())
