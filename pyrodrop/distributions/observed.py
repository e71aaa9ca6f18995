"""Distribution of observations, some of which are missing.

    log p(y) = log p_0(y) where y is observed, 0 where it is missing          every element separately

Missing values are NaN, or a whole number that y cannot have. This is Pyro's ``mask``, with a mask that is part of y.
"""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor
from torch.distributions import Independent, constraints

# Supports that do not depend on parameters. 1/2 replaces missing values, whose gradients are then set to 0.
_SUPPORTS = (constraints.real, constraints.positive, constraints.nonnegative, constraints.unit_interval)


def missing_entries(y: Tensor, value: float) -> Tensor:
    """Where y is missing: where it is NaN, if `value` is NaN, and otherwise where it equals `value`."""
    return y.isnan() if value != value else y == value


class Observed(MaskedDistribution):
    """The distribution `base_dist` of single numbers, whose missing values have log density 0 and no gradient.

    Args:
        base_dist, value: a distribution with event shape ``[]``, and the number that marks missing values, or NaN.

    Raises:
        ValueError: `base_dist` has another event shape, or a support that is unknown or depends on its parameters.
    """

    def __init__(self, base_dist: Any, value: float) -> None:
        self.value: float = value
        self.inside: float = inside(base_dist)
        super().__init__(base_dist, mask=True)

    def log_prob(self, value: Tensor) -> Tensor:
        missing = missing_entries(value, self.value)
        log_prob: Tensor = self.base_dist.log_prob(value.masked_fill(missing, self.inside))
        return torch.where(missing, torch.zeros_like(log_prob), log_prob)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Observed:
        return Observed(self.base_dist.expand(batch_shape), self.value)


def observed(distribution: Any, value: float) -> Any:
    """The distribution, with `Observed` elements."""
    if isinstance(distribution, Independent):
        return type(distribution)(observed(distribution.base_dist, value), distribution.reinterpreted_batch_ndims)
    return Observed(distribution, value)


def inside(distribution: Any) -> float:
    """A value that is in the support of a distribution of single numbers for all parameters.

    Raises:
        ValueError: no such value is known, or `distribution` has an event shape.
    """
    if distribution.event_shape:
        raise ValueError(
            "missing observations need elements of y that are independent given f; got "
            f"{type(distribution).__name__}, whose elements have one joint density: leave out the rows with missing values "
            "instead"
        )
    try:
        support = distribution.support
    except NotImplementedError:
        support = None
    if support is not None and support.is_discrete:
        return 0
    if not any(support is known for known in _SUPPORTS):
        raise ValueError(
            "missing observations need a distribution of y whose support is known and does not depend on f, such as real or "
            f"positive numbers, or counts; got {type(distribution).__name__} with {'none' if support is None else support}"
        )
    return 0.5
