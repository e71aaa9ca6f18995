"""The table is held against the public names: every callable is in it, or is listed here with a reason."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyrodrop
import pyrodrop.analysis

from .harness import Call

MODULES = (
    "analysis compression data distributions divergences guides likelihoods metrics models priors reparam schedules zoo"
).split()

# Names without rows, and why.
NOT_CALLED = {}


def calls() -> list[Call]:
    """All calls of the table."""
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    found: list[Call] = []
    for file in files:
        found += getattr(importlib.import_module(f".{file}", __package__), "CALLS", [])
    return found


def callables() -> dict[str, Any]:
    """Every public callable by name."""
    found = {name: getattr(pyrodrop, name) for name in pyrodrop.__all__ if name not in MODULES}
    for module in MODULES:
        own = getattr(pyrodrop, module)
        names = getattr(own, "__all__", None) or [
            n for n, v in vars(own).items() if not n.startswith("_") and getattr(v, "__module__", "") == own.__name__
        ]
        found |= {f"{module}.{name}": getattr(own, name) for name in names}
    return {name: value for name, value in found.items() if callable(value)}


def test_every_public_callable_is_in_the_table() -> None:
    named = {call.name for call in calls()}
    assert not named & set(NOT_CALLED), "names of the table that are also listed as not called"
    assert not set(callables()) - named - set(NOT_CALLED)
    assert not set(NOT_CALLED) - set(callables())
