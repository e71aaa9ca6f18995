"""Measured results of the zoo's entries: ``reference/NAME.json``.

entry, recipe        the name, and a description of the entry at the time of the measurement
result               scores of the full run with its seed, or the reason why there is none
check                scores of the short run of ``pyrodrop check``, with seed and tolerances
versions, machine    package versions, and processor, device and number of threads
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.data import Dataset
from pyrodrop.failed import Failed
from pyrodrop.zoo import Entry
from pyrodrop.zoo.entry import guide_class
from pyrodrop.zoo.sources import SOURCES

FOLDER = Path(__file__).parents[1] / "reference"
LATE = {"compression"}  # scores that a short run may lack
KEYS = ("entry", "recipe", "result", "check", "versions", "machine")


def file(name: str) -> Path:
    """Path of the reference of an entry."""
    return FOLDER / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    """The reference of an entry.

    Raises:
        ValueError: there is no reference, or it is broken, incomplete or of another entry.
    """
    path = file(name)
    if not path.is_file():
        raise Failed(f"{name} has no reference: {path.name} is not in {path.parent}")
    try:
        record = read_record(path)
    except Failed as error:
        raise Failed(f"the reference of {name} is broken: {error}") from None
    missing = [key for key in KEYS if key not in record.content]
    if missing:
        raise Failed(f"the reference of {name} lacks {', '.join(missing)}")
    content = dict(record.content)
    if content["entry"] != name:
        raise Failed(f"the reference of {name} is that of {content['entry']}")
    check = record.record("check").content
    if not check.get("scores") or set(check["scores"]) != set(check.get("tolerance", ())):
        raise Failed(f"the reference of {name} needs scores of its check with a tolerance for each")
    for key in ("scores", "tolerance"):
        numbers = record.record("check").record(key)
        for score in numbers.content:
            numbers.number(score)
    return content


def of_sparse(name: str) -> dict[str, Any] | None:
    """The stored results of ``pyrodrop run sparse`` with the recipe of an entry; None if there are none."""
    path = FOLDER / f"{name.replace('/', '-')}.json"
    return dict(read_record(path).content) if path.is_file() else None


def scores(name: str) -> dict[str, float]:
    """The scores of the full run; empty if there is none, or no reference."""
    if not file(name).is_file():
        return {}
    result = load(name)["result"]
    return dict(result["scores"]) if isinstance(result, dict) else {}


def problems(entry: Entry, data: Dataset | None = None) -> list[str]:
    """Problems of an entry and its reference, one line each.

    Args:
        data: its training data, to check also whether the entry has changed since the reference was measured.
    """
    empty = [
        f.name for f in fields(entry) if f.name not in ("published", "published_errors") and not getattr(entry, f.name)
    ]
    faults = [f"it has no {name}" for name in empty]
    if "data" not in empty and entry.data not in SOURCES:
        faults.append(f"no data set is called {entry.data!r}")
    if "guide" not in empty and guide_class(entry) is None:
        faults.append(f"its guide is no class of pyrodrop.guides: {entry.guide!r}")
    try:
        content = load(entry.name)
    except ValueError as error:
        return [f"{entry.name}: {line}" for line in (*faults, str(error))]
    check = content["check"]
    if "check" not in empty and check.get("run") != asdict(entry.check):
        faults.append(f"its reference is of another check: {check.get('run')}, not {asdict(entry.check)}")
    unknown = sorted(set(entry.published) - set(check["scores"]) - LATE)
    if unknown:
        faults.append(f"it has published {', '.join(unknown)}, which no run of it measures")
    if data is not None and not faults and content["recipe"] != entry.recipe(data):
        faults.append("its recipe is not that of its reference: measure it again")
    return [f"{entry.name}: {line}" for line in faults]


def misses(name: str, measured: Mapping[str, float]) -> dict[str, str]:
    """The scores of a check that are outside the tolerance of the reference, each with a description."""
    check = load(name)["check"]
    missed = {}
    for score, value in check["scores"].items():
        ours, tolerance = measured.get(score, math.nan), check["tolerance"][score]
        if not abs(ours - value) <= tolerance:
            missed[score] = f"{ours:.6g} is not within {tolerance:.2g} of {value:.6g}"
    return missed
