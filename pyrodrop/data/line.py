"""A straight line with noise, the synthetic data set of the concrete dropout paper.

    y = 2 x + 8 + N(0, 1),   x ~ N(0, 1)

Gal, Hron & Kendall (2017), Concrete Dropout, arXiv:1705.07832, released notebook.
"""

from __future__ import annotations

from typing import Annotated

import torch

from pyrodrop.arguments import MOST
from pyrodrop.constraints import Count, Seed, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.splits import Split
from pyrodrop.devices import seeded

SOURCE = "made here; Gal, Hron & Kendall (2017), Concrete Dropout, released notebook"


@checked
def line(n: Annotated[int, Count("the number of examples")], seed: Seed = 0) -> Dataset:
    """Sample n examples: x and y ``[n, 1]``. The same `seed` gives the same data.

    Raises:
        TypeError, ValueError: an argument is not a whole number in range.
    """
    with seeded(seed, torch.device("cpu")):
        x = torch.randn(n, 1)
        return Dataset(x, 2 * x + 8 + torch.randn(n, 1))


@checked
def line_split(
    n: Annotated[int, Count("the number of training examples")],
    seed: Annotated[int, Count("the seed of the random numbers", least=0, most=MOST - 10_000)] = 0,
    test: Annotated[int, Count("the number of test examples")] = 2000,
) -> Split:
    """Sample n training examples and `test` independent test examples.

    Raises:
        TypeError, ValueError: an argument is not a whole number in range.
    """
    return Split(f"line-{n}", line(n, seed), line(test, seed + 10_000), "", "", SOURCE)
