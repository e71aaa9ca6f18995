"""Whether two estimates agree, in standard errors.

    z = (a - b) / sqrt(se_a^2 + se_b^2)         at most LIMIT for everything that is compared

Where an estimate has no noise, as under a point, it must agree to `EXACT` of its size.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

LIMIT, EXACT = 4.5, 1e-6
_DIRECTIONS = 6  # of large tensors, in which means and variances are compared


def distance(a: Tensor, se_a: Tensor, b: Tensor, se_b: Tensor) -> float:
    """The largest z."""
    size = torch.maximum(a.abs(), b.abs())
    se = torch.sqrt(se_a**2 + se_b**2) + EXACT / LIMIT * (size + size.mean() * 1e-3 + 1e-9)
    z = ((a - b).abs() / se).max()
    return float("inf") if bool(torch.isnan(z)) else float(z)


def mean(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the first axis and its standard error."""
    return draws.mean(0), draws.std(0, correction=0) / max(1, len(draws) - 1) ** 0.5


def variance(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Variance over the first axis and its standard error."""
    return mean((draws - draws.mean(0)) ** 2)


def same_mean(a: Tensor, b: Tensor) -> float:
    """Distance of the means of two sets of draws, ``[S, ...]``."""
    return distance(*mean(a.flatten(1)), *mean(b.flatten(1)))


def same_variance(a: Tensor, b: Tensor) -> float:
    """Distance of the variances of every number of two sets of draws."""
    return distance(*variance(a.flatten(1)), *variance(b.flatten(1)))


def same_covariance(a: Tensor, b: Tensor) -> float:
    """Distance of the variances of sums over all points and outputs with random signs, which covariances decide."""
    a, b = a.flatten(1), b.flatten(1)
    scale = b.std(0, correction=0) + torch.finfo(b.dtype).tiny
    signs = directions("covariance", b.shape[1], dtype=b.dtype) / scale[:, None]
    fixed = scale <= EXACT * b.abs().mean(0)
    signs[fixed] = 0
    return distance(*variance(a @ signs), *variance(b @ signs))


def directions(name: str, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random signs ``[size, few]``, the same for one name; all single numbers where they are few."""
    if size <= _DIRECTIONS and name != "covariance":
        return torch.eye(size, dtype=dtype)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(0, 2, (size, _DIRECTIONS), generator=generator).to(dtype) * 2 - 1


class Look:
    """What is kept of a gradient: a few directions of every parameter's."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.signs = {name: directions(name, shape.numel()) for name, shape in sorted(shapes.items())}

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([gradients[name].flatten() @ signs.to(gradients[name]) for name, signs in self.signs.items()])
