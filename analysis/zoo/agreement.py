"""Whether our result of an entry agrees with the published one within standard errors.

    z = mean of (ours - published) over splits / its standard error          published by split, of the same splits
    z = (ours - published) / sqrt(e_ours^2 + e_published^2)                   otherwise

If ours is a single run and the published score is the mean of R runs, e_ours = sqrt(R) e_published. If a standard error is
still missing, there is no z.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyrodrop.analysis.zoo.published import by_split
from pyrodrop.zoo import Entry

_WITHIN = 2.0  # standard errors


@dataclass(frozen=True)
class Agreement:
    """A published score and ours.

    Attributes:
        published_error, error: their standard errors, of ours possibly sqrt(R) published_error; None if unknown.
        z: ours minus published in standard errors; None if these are unknown.
        paired: whether z is computed from differences on the same splits.
    """

    published: float
    ours: float
    published_error: float | None
    error: float | None
    z: float | None
    paired: bool


def agreements(entry: Entry, result: Mapping[str, Any] | str | None) -> dict[str, Agreement]:
    """A comparison for every published score that our run has, by name; empty if there is no run."""
    if not isinstance(result, Mapping):
        return {}
    return {name: _agreement(entry, name, result) for name in entry.published if name in result["scores"]}


def verdict(entry: Entry, result: Mapping[str, Any] | str | None) -> str:
    """How our result compares with the published one, as one of a few phrases by which the index filters."""
    if not isinstance(result, Mapping):
        return waiting(result)
    if not entry.published:
        return "no published figure"
    z = [score.z for score in agreements(entry, result).values() if score.z is not None]
    if not z:
        return "no error to compare"
    return "fits the paper" if max(map(abs, z)) <= _WITHIN else "outside"


def waiting(result: str | None) -> str:
    """Why there is no result, in two to four words: the text before the colon in the reference, if it is a known one."""
    return begins if (begins := (result or "").partition(":")[0]) in ("waits for a GPU", "not kept") else "not run yet"


def _agreement(entry: Entry, name: str, result: Mapping[str, Any]) -> Agreement:
    ours, theirs = result["scores"][name], entry.published[name]
    error, their_error = result["standard_errors"].get(name), entry.published_errors.get(name)
    if error is None and their_error is not None and entry.published_runs > 1:
        error = their_error * math.sqrt(entry.published_runs)
    pairs = _differences(entry, name, result)
    if len(pairs) > 1:
        z: float | None = statistics.fmean(pairs) / (statistics.stdev(pairs) / math.sqrt(len(pairs)))
    else:
        z = None if error is None or their_error is None else (ours - theirs) / math.hypot(error, their_error)
    return Agreement(theirs, ours, their_error, error, z, len(pairs) > 1)


def _differences(entry: Entry, name: str, result: Mapping[str, Any]) -> list[float]:
    """Our scores minus the published ones by split, if both are known."""
    kind, _, data = entry.name.partition("/")
    theirs = by_split("gal2016").get(data, {}).get(name, []) if kind == "uci" else []
    return [a - b for a, b in zip(result["each"].get(name, []), theirs, strict=False)]
