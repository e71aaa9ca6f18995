"""Hyperparameters that a group of weights shares: one for each weight, input unit, output unit or the whole layer."""

from __future__ import annotations

from torch import Tensor

from pyrodrop.distributions.pooled_normal import Group, units_of
from pyrodrop.distributions.units import InputUnits


def mean_squares(group: Group, name: str, like: Tensor, units: InputUnits | None) -> Tensor:
    """The mean square of the weights of every group, in the shape of the site of a hyperparameter.

    Args:
        group: which weights form a group.
        name: of the weight.
        like: the weight.
        units: which of its axes indexes input units.

    Raises:
        ValueError: the groups are units, and those of a weight with several axes are unknown.
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
    if group in ("input", "output") and units is not None and units.axis is None and like.dim() > 1:
        raise ValueError(
            f"group={group!r} of a prior has one hyperparameter per {group} unit, but the units of {name!r} of shape "
            f"{tuple(like.shape)} are unknown: set another prior for it by name, "
            f"prior={{{name!r}: priors.ARD('weight'), '*': ...}}, "
            f"or specify the axis of its input units, models.from_module(..., input_axes={{{name!r}: 1}})"
        )
    return units_of(group, units or InputUnits(), like.shape)
