"""Automatic relevance determination (ARD): Gaussians whose variances are inferred together with the weights."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyrodrop.checks import instance, one_of
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.unsampled import Group, PooledNormal, units_of
from pyrodrop.priors.prior import Prior


class ARD(Prior):
    """Zero-mean Gaussians with unknown variances.

        w_ij ~ N(0, lambda_g^2)                               g is the group of w_ij
        lambda_g^2 = mean_g E_q[w^2]                          without a hyperprior: empirical Bayes in closed form
        lambda_g^2 ~ hyperprior, site ``NAME_prior_variance`` with a hyperprior: a latent variable with a factor in the guide

    References:
        MacKay (1994), Bayesian Non-linear Modelling for the Prediction Competition.
        Titsias & Lazaro-Gredilla (2014), https://proceedings.mlr.press/v32/titsias14.html, section 3.1.
        Kharitonov, Molchanov & Vetrov (2018), Variational Dropout via Empirical Bayes, https://arxiv.org/abs/1811.00596.

    Args:
        group: which weights share a variance: each ``weight`` has its own, or it is shared by all weights of an ``input``
            unit, or of the whole ``layer``. Every element of a vector counts as a unit. The model
            specifies the units of each weight.
        hyperprior: distribution of one variance, with positive support and scalar shape, such as
            ``dist.InverseGamma(1.0, 0.1)`` or ``dist.HalfCauchy(0.1)``. Without a hyperprior the variances are those that
            minimise the KL divergence of the posterior from the prior.

    Raises:
        ValueError: `group` is unknown, or `hyperprior` is not scalar, discrete or has values that are not positive. When the
            prior is used: the group is ``input``, and the input units of a tensor with several axes are
            unknown.
        TypeError: `hyperprior` is no distribution of Pyro.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyrodrop import priors
        >>> priors.ARD("input").describe()
        'ARD(group=input)'
        >>> priors.ARD("layer", dist.InverseGamma(1.0, 0.1)).describe()
        'ARD(group=layer, InverseGamma)'
    """

    def __init__(self, group: Group = "weight", hyperprior: TorchDistribution | None = None) -> None:
        self.group: Group = one_of(group, Group, "group")
        if hyperprior is not None:
            _check_hyperprior(hyperprior)
        self.hyperprior = hyperprior

    def expand(self, *shape: int, like: Tensor | None = None, units: InputUnits | None = None) -> TorchDistribution:
        if self.hyperprior is not None:
            raise ValueError(
                "ARD with a hyperprior has a latent variance: call for_site(name, like) inside a model, which samples it"
            )
        return PooledNormal(shape, self.group, units=units or InputUnits())

    def hyper_sites(self, name: str, like: Tensor, units: InputUnits | None = None) -> dict[str, Tensor]:
        if self.hyperprior is None:
            return {}
        return {f"{name}_prior_variance": mean_squares(self.group, name, like, units).clamp_min(1e-4)}

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        start = mean_squares(self.group, name, like, units)
        if self.hyperprior is None:
            return self.expand(*like.shape, like=like, units=units)
        prior: Any = self.hyperprior
        if like.device.type != "cpu":
            prior = rebuilt(lambda value: value.to(like.device), prior)
        hyperprior = prior.expand(start.shape).to_event(start.dim())
        variance = pyro.sample(f"{name}_prior_variance", hyperprior)
        batch = variance.shape[: variance.dim() - start.dim()]
        variance = over_weights(variance, self.group, name, like, units)
        return dist.Normal(torch.zeros_like(like), variance.sqrt().expand(batch + like.shape)).to_event(like.dim())

    def describe(self) -> str:
        return f"ARD(group={self.group}" + (")" if self.hyperprior is None else f", {type(self.hyperprior).__name__})")


def _check_hyperprior(hyperprior: TorchDistribution) -> None:
    """Raise an error unless this is a distribution of a single variance."""
    what = "the distribution of one variance, positive and of scalar shape, such as dist.InverseGamma(1.0, 0.1)"
    instance(hyperprior, TorchDistributionMixin, "hyperprior", what)
    if hyperprior.batch_shape or hyperprior.event_shape:
        raise ValueError(f"hyperprior must be the distribution of a scalar; got shape {tuple(hyperprior.shape())}")
    support: Any = hyperprior.support
    if support.is_discrete or bool(support.check(-torch.logspace(-6, 6, 49, dtype=torch.float64)).any()):
        raise ValueError(f"hyperprior must be {what}; got a {type(hyperprior).__name__} with the support {support}")


def mean_squares(group: Group, name: str, like: Tensor, units: InputUnits | None) -> Tensor:
    """The mean square of the weights of every group, in the shape of the site of a hyperparameter.

    Args:
        group: which weights form a group.
        name: name of the weight.
        like: the weight.
        units: which axis of the weight indexes input units.

    Raises:
        ValueError: the group is ``input``, and the units of a weight with several axes are unknown.
    """
    square, shared = like.square(), _units(group, name, like, units)
    if group == "layer":
        return square.mean(list(range(like.dim())), keepdim=True)
    if shared is None:
        return square
    means, count = shared.mean(square, like.shape), shared.count(like.shape)
    if means.numel() == count:
        return means
    return shared.sum(square, like.shape) * (count / like.numel())  # a grouped convolution


def over_weights(values: Tensor, group: Group, name: str, like: Tensor, units: InputUnits | None) -> Tensor:
    """Hyperparameters ``[..., *shape of the site]``, so that they broadcast against weights ``[..., *like.shape]``."""
    shared = _units(group, name, like, units)
    if shared is None or mean_squares(group, name, like, units).dim() == like.dim():
        return values
    return shared.over(values, like.shape)


def _units(group: Group, name: str, like: Tensor, units: InputUnits | None) -> InputUnits | None:
    if group == "input" and units is not None and units.axis is None and like.dim() > 1:
        raise ValueError(
            f"group={group!r} of a prior has one hyperparameter per {group} unit, but the units of {name!r} of shape "
            f"{tuple(like.shape)} are unknown: set another prior for it by name, "
            f"prior={{{name!r}: priors.ARD('weight'), '*': ...}}, "
            f"or specify the axis of its input units, models.from_module(..., input_axes={{{name!r}: 1}})"
        )
    return units_of(group, units or InputUnits(), like.shape)
