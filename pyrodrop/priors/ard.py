"""Automatic relevance determination: Gaussians whose variances are found with the weights.

    w_ij ~ N(0, lambda_g^2)                                  g the group of w_ij
    lambda_g^2 = mean_g E_q[w^2]                             without a hyperprior: empirical Bayes in closed form
    lambda_g^2 ~ hyperprior, site ``NAME.prior_variance``    with one: a latent variable with its own factor in the guide

MacKay (1994), Bayesian Non-linear Modelling for the Prediction Competition; Titsias & Lazaro-Gredilla (2014), section 3.1;
Kharitonov, Molchanov & Vetrov (2018), Variational Dropout via Empirical Bayes.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.pooled_normal import GROUPS, Group, PooledNormal, pooled_axes
from pyrodrop.names import known
from pyrodrop.priors.prior import Prior


class ARD(Prior):
    """Gaussian with unknown variances.

    Args:
        group: which weights share a variance: each ``weight`` has its own, all that leave an ``input`` unit or enter an
            ``output`` unit share one, or the whole ``layer``. Vectors count every element as a unit.
        hyperprior: law of a variance, over positive numbers, such as ``dist.InverseGamma(1.0, 0.1)`` or
            ``dist.HalfCauchy(0.1)``; without one the variances are those the posterior makes most of.
    """

    def __init__(self, group: Group = "weight", hyperprior: TorchDistribution | None = None) -> None:
        self.group: Group = known(group, GROUPS, "ARD group")  # type: ignore[assignment]
        if hyperprior is not None and (hyperprior.batch_shape or hyperprior.event_shape):
            raise ValueError(f"hyperprior is the law of one variance, a scalar; got shape {tuple(hyperprior.shape())}")
        self.hyperprior = hyperprior

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        if self.hyperprior is not None:
            raise ValueError(
                "ARD with a hyperprior has a latent variance: draw it in a model, with for_site(name, like)"
            )
        return PooledNormal(shape, self.group)

    def hyper_sites(self, name: str, like: Tensor) -> dict[str, Tensor]:
        if self.hyperprior is None:
            return {}
        axes = pooled_axes(self.group, like.dim())
        start = like.square().mean(axes, keepdim=True) if axes else like.square()
        return {f"{name}.prior_variance": start.clamp_min(1e-4)}

    def for_site(self, name: str, like: Tensor) -> TorchDistribution:
        if self.hyperprior is None:
            return super().for_site(name, like)
        ((site, start),) = self.hyper_sites(name, like).items()
        variance = pyro.sample(site, self.hyperprior.expand(start.shape).to_event(start.dim()))
        scale = variance.sqrt().expand(variance.shape[: -like.dim()] + like.shape)
        return dist.Normal(torch.zeros_like(like), scale).to_event(like.dim())

    def describe(self) -> str:
        return f"ARD(group={self.group}" + (")" if self.hyperprior is None else f", {type(self.hyperprior).__name__})")
