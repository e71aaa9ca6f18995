"""A regression table with its published train-test splits.

The standardisation of a split is computed from its training rows: mean 0 and standard deviation 1 (dividing by N). A
constant input column is only centred, as in the released code of Gal & Ghahramani (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.data.dataset import Dataset, Split
from pyrodrop.scaling import Standardize, varies


class Splits(Sequence[Split]):
    """The splits of a table into training and test rows: a sequence that creates each `Split` on access.

    Args:
        name: name of the table.
        x: inputs, ``[N, Q]``, float64, in the original units.
        y: observations, ``[N, 1]``, float64, in the original units.
        rows: indices of the training rows and of the test rows of every split, in the published order.
        source: source of the table.

    Raises:
        ValueError: a split has fewer than two training rows or no test row. On access: y is constant in the training rows.
    """

    def __init__(self, name: str, x: Tensor, y: Tensor, rows: Sequence[tuple[Any, Any]], source: str) -> None:
        self.name, self.x, self.y, self.source = name, x, y, source
        self.rows = [(torch.as_tensor(train), torch.as_tensor(test)) for train, test in rows]
        for number, (train, test) in enumerate(self.rows):
            if len(train) < 2 or len(test) < 1:
                raise ValueError(
                    f"a split needs at least two training rows and one test row; split {number} of {name} has {len(train)} "
                    f"and {len(test)}"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        train, test = self.rows[number]
        own = standardized(self.x[train], self.y[train], f"split {number} of {self.name}")
        held_out = Dataset(self.x[test].float(), self.y[test].float(), inputs=own.inputs, targets=own.targets)
        return Split(f"{self.name}-{number}", own, held_out, "", "", self.source)


def standardized(x: Tensor, y: Tensor, name: str) -> Dataset:
    """Rows as a float32 data set with a standardisation computed from these rows in float64.

    Raises:
        ValueError: y is constant.
    """
    if not varies(y, torch.float32).all():
        raise ValueError(f"{name} has a constant y, {float(y[0, 0]):g} in all {len(y)} rows: there is nothing to learn")
    own = [Standardize.of(values.double(), torch.float32).float() for values in (x, y)]
    return Dataset(x.float(), y.float(), inputs=own[0], targets=own[1])


def permuted(count: int, splits: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of the published splits of the UCI data sets.

    Split i uses the i-th permutation that ``numpy.random.RandomState(seed)`` draws. Its first ``round(0.9 * count)`` rows
    are the training rows.
    """
    draw = np.random.RandomState(seed)
    orders = [draw.choice(range(count), count, replace=False) for _ in range(splits)]
    first = round(0.9 * count)
    return [(order[:first], order[first:]) for order in orders]
