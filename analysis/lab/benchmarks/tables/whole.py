"""Whole tables for other benchmarks: airfoil, bike and wine quality, all of their rows, in their units.

Airfoil (noise of airfoils, 1,503 rows), bike (bicycles hired per hour, 17,379 rows) and wine quality (1,599 rows) are those
of `data.uci`.
"""

from __future__ import annotations

import numpy as np

from pyrodrop import data


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """x ``[N, D]`` and y ``[N]``, float64."""
    splits = data.uci({"bike": "bikes"}.get(name, name.split()[0]))
    return splits.x.numpy(), splits.y[:, 0].numpy()
