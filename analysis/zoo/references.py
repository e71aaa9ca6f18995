"""Measured results of the zoo's entries: ``reference/NAME.json``.

entry, recipe        the name, and a description of the entry at the time of the measurement
result               scores of the full run with its seed, versions and machine, or the reason why there is none
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.data import Dataset
from pyrodrop.failed import Failed
from pyrodrop.zoo import Entry

FOLDER = Path(__file__).parents[1] / "reference"
KEYS = ("entry", "recipe", "result")


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
    if record.content["entry"] != name:
        raise Failed(f"the reference of {name} is that of {record.content['entry']}")
    return dict(record.content)


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


def recipe(entry: Entry, data: Dataset) -> dict[str, Any]:
    """A JSON-compatible description of network, prior, posterior and training of an entry."""
    model, guide = entry.build(data)
    return {
        "network": model.describe(),
        "prior": {name: prior.describe() for name, prior in model.priors.items()},
        "posterior": guide.describe(),
        "training": {name: _plain(value) for name, value in entry.settings(data).items()},
    }


def _plain(value: Any) -> Any:
    """A setting as a number or a string."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, functools.partial):
        arguments = ", ".join(f"{k}={_plain(v)}" for k, v in value.keywords.items())
        return f"{_plain(value.func)}({arguments})"
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__.split(".")[0].lstrip("_")
    return str(value)
