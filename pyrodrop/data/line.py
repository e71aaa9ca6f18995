"""A straight line with noise, the synthetic data of concrete dropout.

    y = 2 x + 8 + N(0, 1),   x ~ N(0, 1)

Gal, Hron & Kendall (2017), released notebook.
"""

from __future__ import annotations

import torch

from pyrodrop.data.dataset import Dataset, Split
from pyrodrop.devices import seeded

SOURCE = "made here; Gal, Hron & Kendall (2017), Concrete Dropout, released notebook"


def line(n: int, seed: int = 0) -> Dataset:
    """n draws of the line: x and y ``[n, 1]``."""
    with seeded(seed, torch.device("cpu")):
        x = torch.randn(n, 1)
        return Dataset(x, 2 * x + 8 + torch.randn(n, 1))


def line_split(n: int, seed: int = 0, test: int = 2000) -> Split:
    """n draws to train on, and others to test."""
    return Split(f"line-{n}", line(n, seed), line(test, seed + 10_000), "", "", SOURCE)
