"""A job: an experiment by name, imported when it is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Job:
    """An experiment with its one-line summary; the code is in ``pyrodrop.analysis.experiments.NAME``."""

    summary: str
    name: str = ""

    def named(self, name: str) -> Job:
        return replace(self, name=name)

    @property
    def function(self) -> Callable[..., Any]:
        """The function of the experiment; its keyword arguments are the job's options."""
        module = importlib.import_module(f"pyrodrop.analysis.experiments.{self.name.replace('-', '_')}")
        return module.run  # type: ignore[no-any-return]
