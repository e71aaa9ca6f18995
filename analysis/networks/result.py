"""What a check of a cell found, and when two fits or estimates agree."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.analysis.networks import agreement


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
    """What was reached, unless a distance (`agreement.distance`) is beyond its limit."""
    if reached.kind == "wrong":
        return reached
    worst = max(distances, key=lambda name: distances[name])
    if distances[worst] <= agreement.LIMIT:
        return reached
    return Result("wrong", f"{worst} is {distances[worst]:.3g} standard errors off")


def same_state(reached: Result, run: Any, base: Any, *, exact: bool = False) -> Result:
    """Whether all parameters, buffers and losses of two fits are equal, up to rounding or bitwise."""
    if reached.kind == "wrong":
        return reached
    for part in ("model", "guide"):
        ours, theirs = getattr(run, part).state_dict(), getattr(base, part).state_dict()
        if ours.keys() != theirs.keys():
            return Result("wrong", f"{part}: {sorted(ours.keys() ^ theirs.keys())} only in one of two fits")
        for name in ours:
            if not _close(ours[name], theirs[name], exact):
                gap = float((ours[name].double() - theirs[name].double()).abs().max())
                return Result("wrong", f"{name} of the {part} differs by {gap:.3g}")
    if not _close(run.history, base.history, exact):
        return Result("wrong", "losses differ")
    return reached


def _close(a: Tensor, b: Tensor, exact: bool) -> bool:
    if exact:
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6)
