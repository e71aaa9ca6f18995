"""The result of a check: whether two estimates agree within standard errors, or two fits are equal.

    z = |a - b| / sqrt(se_a^2 + se_b^2)         at most LIMIT for every comparison

Estimates without noise, as for a point estimate, must agree to a relative error of `EXACT`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

LIMIT, EXACT = 4.5, 1e-6
_DIRECTIONS = 6  # number of random directions in which large tensors are compared


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
    """Distance of the means of two sets of samples, ``[S, ...]``."""
    return distance(*mean(a.flatten(1)), *mean(b.flatten(1)))


def same_variance(a: Tensor, b: Tensor) -> float:
    """Distance of the elementwise variances of two sets of samples, ``[S, ...]``."""
    return distance(*variance(a.flatten(1)), *variance(b.flatten(1)))


def same_covariance(a: Tensor, b: Tensor) -> float:
    """Distance of the variances of randomly signed sums over points and outputs, which depend on the covariances."""
    a, b = a.flatten(1), b.flatten(1)
    scale = b.std(0, correction=0) + torch.finfo(b.dtype).tiny
    signs = directions("covariance", b.shape[1], dtype=b.dtype) / scale[:, None]
    fixed = scale <= EXACT * b.abs().mean(0)
    signs[fixed] = 0
    return distance(*variance(a @ signs), *variance(b @ signs))


def directions(name: str, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random signs ``[size, 6]``, the same for the same name; the identity matrix if `size` is at most 6."""
    if size <= _DIRECTIONS and name != "covariance":
        return torch.eye(size, dtype=dtype)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(0, 2, (size, _DIRECTIONS), generator=generator).to(dtype) * 2 - 1


class Look:
    """Projects the gradient of every parameter on a few fixed directions, to store it per sample."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.signs: dict[str, Tensor] = {
            name: directions(name, shape.numel()) for name, shape in sorted(shapes.items())
        }

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([gradients[name].flatten() @ signs.to(gradients[name]) for name, signs in self.signs.items()])


class Result(NamedTuple):
    """The result of a check.

    Attributes:
        kind: ``right``, ``fallback``, ``other``, ``refused`` or ``wrong``.
        note: the reason, or the quantity that disagrees.
    """

    kind: str
    note: str = ""


RIGHT = Result("right")


def agree(reached: Result = RIGHT, **distances: float) -> Result:
    """`reached`, or the result ``wrong`` if the largest of the distances (`distance`) is above `LIMIT`."""
    if reached.kind == "wrong":
        return reached
    worst = max(distances, key=lambda name: distances[name])
    if distances[worst] <= LIMIT:
        return reached
    return Result("wrong", f"{worst} is {distances[worst]:.3g} standard errors off")


def same_state(reached: Result, run: Any, base: Any, *, exact: bool = False) -> Result:
    """`reached`, or ``wrong`` if parameters, buffers or losses of two fits differ, beyond rounding or (`exact`) at all."""
    if reached.kind == "wrong":
        return reached
    for role in ("model", "guide"):
        ours, theirs = getattr(run, role).state_dict(), getattr(base, role).state_dict()
        if ours.keys() != theirs.keys():
            return Result("wrong", f"{role}: {sorted(ours.keys() ^ theirs.keys())} only in one of two fits")
        for name in ours:
            if not _close(ours[name], theirs[name], exact):
                gap = float((ours[name].double() - theirs[name].double()).abs().max())
                return Result("wrong", f"{name} of the {role} differs by {gap:.3g}")
    if not _close(run.history, base.history, exact):
        return Result("wrong", "losses differ")
    return reached


def _close(a: Tensor, b: Tensor, exact: bool) -> bool:
    if exact:
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6)
