"""Whole tables for other benchmarks: airfoil, bike and wine quality, all of their rows, in their units.

Airfoil (noise of airfoils, 1,503 rows) and bike (bicycles hired per hour, 17,379 rows) are those of the UCI repository in
``$PYRODROP_DATA/tables``; wine quality (1,599 rows) is that of `data.uci`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pyrodrop import data


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """x ``[N, D]`` and y ``[N]``, of float64 where they are read from a file."""
    import pandas as pd

    folder = Path(os.environ.get("PYRODROP_DATA", "")) / "tables"
    if name == "airfoil":
        df, target = pd.read_csv(folder / "airfoil.csv"), "target"
    elif name == "bike":  # y is the sum of two columns
        df, target = pd.read_csv(folder / "bike_sharing_hour.csv.gz"), "cnt"
        df = df.drop(columns=["casual", "registered", "instant", "dteday"])
    else:
        splits = data.uci(name.split()[0])
        return splits.x.numpy(), splits.y[:, 0].numpy()
    return df.drop(columns=target).to_numpy(float), df[target].to_numpy(float)
