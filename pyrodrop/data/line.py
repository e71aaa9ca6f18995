"""A straight line with noise, the synthetic data set of the concrete dropout paper.

    y = 2 x + 8 + N(0, 1),   x ~ N(0, 1)

Gal, Hron & Kendall (2017), Concrete Dropout, arXiv:1705.07832, released notebook.
"""

from __future__ import annotations

import torch

from pyrodrop import arguments
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.splits import Split
from pyrodrop.devices import seeded

SOURCE = "made here; Gal, Hron & Kendall (2017), Concrete Dropout, released notebook"


def line(n: int, seed: int = 0) -> Dataset:
    """Sample n examples: x and y ``[n, 1]``. The same `seed` gives the same data.

    Raises:
        ValueError: `n` is below 1, or `seed` is negative.
        TypeError: one of them is no whole number.
    """
    n, seed = arguments.count(n, "n", "the number of examples"), arguments.seed(seed)
    with seeded(seed, torch.device("cpu")):
        x = torch.randn(n, 1)
        return Dataset(x, 2 * x + 8 + torch.randn(n, 1))


def line_split(n: int, seed: int = 0, test: int = 2000) -> Split:
    """Sample n training examples and `test` independent test examples.

    Raises:
        ValueError: a number of examples is below 1, or `seed` is negative.
        TypeError: one of them is no whole number.
    """
    arguments.count(test, "test", "the number of test examples")
    arguments.count(seed, "seed", "the seed of the random numbers", least=0, most=arguments.MOST - 10_000)
    return Split(f"line-{n}", line(n, seed), line(test, seed + 10_000), "", "", SOURCE)
