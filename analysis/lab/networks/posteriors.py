"""Reference implementations of the checked posteriors: samples and KL divergences written out by hand.

    W = weight(parameters, noise)        KL(q || N(0, scale^2)) = kl(parameters)

They use no distribution of this package, since they are the reference for these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyrodrop import guides
from pyrodrop.analysis.lab.networks.case import Case

Parameters = Mapping[str, Tensor]  # of one weight: loc and further parameters of its posterior
Units = (
    tuple[int, int] | None
)  # axis of a weight along which its input units are counted, and the groups of a convolution


class Posterior(ABC):
    """One kind of posterior.

    Attributes:
        weight_noise: whether noise is independent per weight, rather than per input unit.
    """

    parameters: tuple[str, ...] = ("loc",)
    weight_noise = True

    @abstractmethod
    def guide(self, model: Any, case: Case) -> Any:
        """The package's guide for a model."""

    @abstractmethod
    def noise(self, loc: Tensor, count: int, rate: float, units: Units) -> dict[str, Tensor]:
        """The noise of `count` samples of a weight, each tensor ``[count, ...]``."""

    @abstractmethod
    def weight(self, parameters: Parameters, noise: Mapping[str, Tensor], units: Units) -> Tensor:
        """One sample of the weight."""

    @abstractmethod
    def kl(self, parameters: Parameters, scale: float, rate: float, units: Units) -> Tensor:
        """KL divergence from N(0, scale^2)."""


class Point(Posterior):
    """W = M; the KL divergence omits the constant that is infinite in the limit theta -> 0."""

    weight_noise = False

    def guide(self, model: Any, case: Case) -> Any:
        return guides.Point(model)

    def noise(self, loc: Tensor, count: int, rate: float, units: Units) -> dict[str, Tensor]:
        return {"none": torch.zeros(count, dtype=loc.dtype)}

    def weight(self, parameters: Parameters, noise: Mapping[str, Tensor], units: Units) -> Tensor:
        return parameters["loc"] + 0 * noise["none"]

    def kl(self, parameters: Parameters, scale: float, rate: float, units: Units) -> Tensor:
        loc = parameters["loc"]
        return (loc**2).sum() / (2 * scale**2) + loc.numel() * (math.log(scale) + math.log(2 * math.pi) / 2)


class Bernoulli(Point):
    """W = M diag(z) with one Bernoulli variable z per input unit; vectors are not masked."""

    def guide(self, model: Any, case: Case) -> Any:
        return guides.BernoulliDropout(model, case.drop_rate, mask_input=True)

    def noise(self, loc: Tensor, count: int, rate: float, units: Units) -> dict[str, Tensor]:
        if rate == 0 or units is None:
            return {"mask": torch.ones(count, *(1,) * loc.dim(), dtype=loc.dtype)}
        number = count_units(loc, units)
        keep = torch.bernoulli(torch.full((count, number), 1 - rate, dtype=loc.dtype))
        return {"mask": over_weight(keep, loc, units)}

    def weight(self, parameters: Parameters, noise: Mapping[str, Tensor], units: Units) -> Tensor:
        return parameters["loc"] * noise["mask"]

    def kl(self, parameters: Parameters, scale: float, rate: float, units: Units) -> Tensor:
        loc = parameters["loc"]
        constant = loc.numel() * (math.log(scale) + math.log(2 * math.pi) / 2)
        if rate == 0 or units is None:
            return (loc**2).sum() / (2 * scale**2) + constant
        entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
        return (1 - rate) * (loc**2).sum() / (2 * scale**2) + constant - count_units(loc, units) * entropy


class MeanField(Posterior):
    """W = M + exp(log_variance / 2) E."""

    parameters: tuple[str, ...] = ("loc", "log_variance")

    def guide(self, model: Any, case: Case) -> Any:
        return guides.MeanField(model, init_scale=0.2)

    def noise(self, loc: Tensor, count: int, rate: float, units: Units) -> dict[str, Tensor]:
        return {"e": torch.randn(count, *loc.shape, dtype=loc.dtype)}

    def weight(self, parameters: Parameters, noise: Mapping[str, Tensor], units: Units) -> Tensor:
        return parameters["loc"] + torch.exp(parameters["log_variance"] / 2) * noise["e"]

    def kl(self, parameters: Parameters, scale: float, rate: float, units: Units) -> Tensor:
        return _gaussian_kl(
            parameters["loc"], parameters["log_variance"].exp(), parameters["log_variance"].sum(), scale
        )


class VariationalB(MeanField):
    """W = M (1 + sqrt(alpha) E) with one alpha = sigmoid(raw_alpha) per layer."""

    parameters = ("loc", "raw_alpha")

    def guide(self, model: Any, case: Case) -> Any:
        return guides.VariationalDropout(model, "B", drop_rate=0.3)

    def weight(self, parameters: Parameters, noise: Mapping[str, Tensor], units: Units) -> Tensor:
        return parameters["loc"] * (1 + torch.sigmoid(parameters["raw_alpha"]).sqrt() * noise["e"])

    def kl(self, parameters: Parameters, scale: float, rate: float, units: Units) -> Tensor:
        loc = parameters["loc"]
        variance = torch.sigmoid(parameters["raw_alpha"]) * (loc**2).clamp_min(torch.finfo(loc.dtype).tiny)
        return _gaussian_kl(loc, variance, variance.log().sum(), scale)


class LowRank(MeanField):
    """vec(W) = vec(M) + F e + exp(log_variance / 2) E."""

    parameters = ("loc", "factor", "log_variance")

    def guide(self, model: Any, case: Case) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return guides.LowRank(model, rank=2, init_scale=0.2)

    def noise(self, loc: Tensor, count: int, rate: float, units: Units) -> dict[str, Tensor]:
        return {
            "e": torch.randn(count, loc.numel(), dtype=loc.dtype),
            "few": torch.randn(count, 2, dtype=loc.dtype),
        }

    def weight(self, parameters: Parameters, noise: Mapping[str, Tensor], units: Units) -> Tensor:
        deviation = parameters["factor"] @ noise["few"] + torch.exp(parameters["log_variance"] / 2) * noise["e"]
        return parameters["loc"] + deviation.reshape(parameters["loc"].shape)

    def kl(self, parameters: Parameters, scale: float, rate: float, units: Units) -> Tensor:
        factor, variance = parameters["factor"], parameters["log_variance"].exp()
        inner = torch.eye(factor.shape[1], dtype=factor.dtype) + (factor / variance[:, None]).T @ factor
        logdet = parameters["log_variance"].sum() + torch.logdet(inner)
        return _gaussian_kl(parameters["loc"], variance + factor.square().sum(1), logdet, scale)


def _gaussian_kl(loc: Tensor, variance: Tensor, logdet: Tensor, scale: float) -> Tensor:
    """KL(N(loc, S) || N(0, scale^2 I)) from the diagonal of S and the logarithm of its determinant."""
    trace = (variance.sum() + (loc**2).sum()) / scale**2
    return 0.5 * (trace - loc.numel() + 2 * loc.numel() * math.log(scale) - logdet)


def count_units(loc: Tensor, units: tuple[int, int]) -> int:
    """Number of input units of a weight."""
    axis, groups = units
    return loc.shape[axis] * groups


def over_weight(per_unit: Tensor, loc: Tensor, units: tuple[int, int]) -> Tensor:
    """Values per input unit, ``[count, units]``, in a shape that broadcasts to the weight; each group has separate units."""
    axis, groups = units
    if groups == 1:
        shape = [1] * loc.dim()
        shape[axis] = -1
        return per_unit.reshape(len(per_unit), *shape)
    each = loc.shape[0] // groups  # output channels of a group
    by_group = per_unit.reshape(len(per_unit), groups, 1, loc.shape[1]).expand(-1, -1, each, -1)
    return by_group.reshape(len(per_unit), loc.shape[0], loc.shape[1], *(1,) * (loc.dim() - 2))


POSTERIORS: dict[str, Posterior] = {
    "Point": Point(),
    "Bernoulli": Bernoulli(),
    "MeanField": MeanField(),
    "VariationalB": VariationalB(),
    "LowRank": LowRank(),
}
