"""The outcome of comparing a published figure with ours.

    z = (ours - published) / sqrt(e_ours^2 + e_published^2)

or, if the published numbers of every split are known, the mean of the paired differences in its standard errors. If no error
of the published figure is known, z is in standard errors of ours alone, and the figure does not count as agreeing or
disagreeing.

    within       at most two standard errors apart, or equal in every split
    outside      further apart
    equal        the same to the printed digits: settings, coefficients, exact values, facts about data
    unequal      not the same
    compared     both numbers are known, but no error of the published one
    missing      no number of ours yet; the reason says what it would take, or why there will be none
    foreign      of a method that is not in this zoo
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["within", "outside", "equal", "unequal", "compared", "missing", "foreign"]
WITHIN = 2.0  # standard errors


@dataclass(frozen=True)
class Outcome:
    """The outcome for one figure.

    Attributes:
        status: see the docstring of this module.
        ours: our number or numbers; None if there is none.
        z: difference in standard errors; None if it is unknown.
        reason: a sentence; it may be empty for figures that agree.
        file: the stored result, see `stored`; empty if there is none.
    """

    status: Status
    ours: Any = None
    z: float | None = None
    reason: str = ""
    file: str = ""


def missing(reason: str) -> Outcome:
    """The outcome if we have no number, with the reason."""
    return Outcome("missing", reason=reason)


def measured(ours: float, z: float | None, why: str, file: str) -> Outcome:
    """The outcome for a figure with a known error; `why` is the reason if it is outside, or if z is None."""
    if z is None:
        return Outcome("compared", ours, None, why, file)
    inside = abs(z) <= WITHIN
    return Outcome("within" if inside else "outside", ours, z, "" if inside else why, file)


def apart(ours: float, error: float | None, published: float, their_error: float | None) -> float | None:
    """z of two independent numbers; None if neither has an error."""
    scale = math.hypot(error or 0.0, their_error or 0.0)
    return (ours - published) / scale if scale else None


def same(ours: Any, published: Any, file: str = "", *, rtol: float = 1e-5, atol: float = 0.0) -> Outcome:
    """The outcome for numbers, lists or settings that must be equal up to a relative `rtol` or an absolute `atol`."""
    equal = _same(ours, published, rtol, atol)
    return Outcome("equal" if equal else "unequal", ours, None, "" if equal else "not the same", file)


def _same(ours: Any, published: Any, rtol: float, atol: float) -> bool:
    if isinstance(published, dict):
        return set(ours) == set(published) and all(_same(ours[key], published[key], rtol, atol) for key in published)
    if isinstance(published, Sequence) and not isinstance(published, str):
        return len(ours) == len(published) and all(
            _same(a, b, rtol, atol) for a, b in zip(ours, published, strict=True)
        )
    return math.isclose(ours, published, rel_tol=rtol, abs_tol=atol)
