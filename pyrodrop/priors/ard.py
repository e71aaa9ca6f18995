"""Automatic relevance determination: Gaussians whose variances are found with the weights.

    w_ij ~ N(0, lambda_g^2)                                  g the group of w_ij
    lambda_g^2 = mean_g E_q[w^2]                             without a hyperprior: empirical Bayes in closed form
    lambda_g^2 ~ hyperprior, site ``NAME_prior_variance``    with one: a latent variable with its own factor in the guide

MacKay (1994), Bayesian Non-linear Modelling for the Prediction Competition; Titsias & Lazaro-Gredilla (2014), section 3.1;
Kharitonov, Molchanov & Vetrov (2018), Variational Dropout via Empirical Bayes.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.pooled_normal import GROUPS, Group, PooledNormal, units_of
from pyrodrop.distributions.units import InputUnits
from pyrodrop.names import known
from pyrodrop.priors.prior import Prior


class ARD(Prior):
    """Gaussian with unknown variances.

    Args:
        group: which weights share a variance: each ``weight`` has its own, all that leave an ``input`` unit or enter an
            ``output`` unit share one, or the whole ``layer``. Vectors count every element as a unit. A model says where a
            weight's units are, and a weight that belongs to no unit is refused for the groups ``input`` and ``output``.
        hyperprior: law of a variance, over positive numbers, such as ``dist.InverseGamma(1.0, 0.1)`` or
            ``dist.HalfCauchy(0.1)``; without one the variances are those the posterior makes most of.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyrodrop import priors
        >>> priors.ARD("input").describe()
        'ARD(group=input)'
        >>> priors.ARD("layer", dist.InverseGamma(1.0, 0.1)).describe()
        'ARD(group=layer, InverseGamma)'
    """

    def __init__(self, group: Group = "weight", hyperprior: TorchDistribution | None = None) -> None:
        self.group: Group = known(group, GROUPS, "ARD group")  # type: ignore[assignment]
        if hyperprior is not None and (hyperprior.batch_shape or hyperprior.event_shape):
            raise ValueError(f"hyperprior is the law of one variance, a scalar; got shape {tuple(hyperprior.shape())}")
        self.hyperprior = hyperprior

    def expand(self, *shape: int, like: Tensor | None = None, units: InputUnits | None = None) -> TorchDistribution:
        if self.hyperprior is not None:
            raise ValueError(
                "ARD with a hyperprior has a latent variance: draw it in a model, with for_site(name, like)"
            )
        return PooledNormal(shape, self.group, units=units or InputUnits())

    def hyper_sites(self, name: str, like: Tensor, units: InputUnits | None = None) -> dict[str, Tensor]:
        if self.hyperprior is None:
            return {}
        return {f"{name}_prior_variance": self._start(name, like, units).clamp_min(1e-4)}

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        found = self._units(name, like, units)
        if self.hyperprior is None:
            return self.expand(*like.shape, like=like, units=units)
        start = self._start(name, like, units)
        variance = pyro.sample(f"{name}_prior_variance", self.hyperprior.expand(start.shape).to_event(start.dim()))
        batch = variance.shape[: variance.dim() - start.dim()]
        if found is not None and start.dim() != like.dim():
            variance = found.over(variance, like.shape)
        return dist.Normal(torch.zeros_like(like), variance.sqrt().expand(batch + like.shape)).to_event(like.dim())

    def _start(self, name: str, like: Tensor, units: InputUnits | None) -> Tensor:
        """The mean square of each group's weights, in the shape of its variances' site."""
        square, found = like.square(), self._units(name, like, units)
        if self.group == "layer":
            return square.mean(list(range(like.dim())), keepdim=True)
        if found is None:
            return square
        means, count = found.mean(square, like.shape), found.count(like.shape)
        if means.numel() == count:
            return means
        return found.sum(square, like.shape) * (count / like.numel())  # of a grouped convolution

    def _units(self, name: str, like: Tensor, units: InputUnits | None) -> InputUnits | None:
        if self.group in ("input", "output") and units is not None and units.axis is None and like.dim() > 1:
            raise ValueError(
                f"ARD(group={self.group!r}) is one variance per {self.group} unit, and {name!r} of shape "
                f"{tuple(like.shape)} is no unit's weight: give it another prior by name, "
                f"prior={{{name!r}: priors.ARD('weight'), '*': ...}}, "
                f"or say which of its axes counts input units, models.from_module(..., input_axes={{{name!r}: 1}})"
            )
        return units_of(self.group, units or InputUnits(), like.shape)

    def describe(self) -> str:
        return f"ARD(group={self.group}" + (")" if self.hyperprior is None else f", {type(self.hyperprior).__name__})")
