"""Data in a training and a test part, and tables with their published train-test splits.

The standardisation of a split is computed from its training rows: mean 0 and standard deviation 1 (dividing by N). A
constant input column is only centred, as in the released code of Gal & Ghahramani (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.arrays import tensor_of
from pyrodrop.checks import Count, Flag, Real, checked, instance, named_parts, tensor
from pyrodrop.data.columns import Encode, checked_frame, read_frame
from pyrodrop.data.dataset import Dataset
from pyrodrop.parts import Described
from pyrodrop.scaling import Standardize, narrowed, varies

_SHOWN = 5  # rows in a message


@checked
@dataclass(frozen=True, repr=False)
class Split(Described):
    """A data set in a training and a test part; `test` has the standardisations of `train`.

    Attributes:
        name: name of the data set.
        train: training part.
        test: test part.
        x_unit: unit of x, for axes and tables.
        y_unit: unit of y, for axes and tables.
        source: source and licence of the data.
        period: known period of a seasonal component, in units of x; None if there is none.
        truth: whether `test` has real observations. If False, its y has the right shape but no meaning.

    `Split.from_frame` divides the rows of a DataFrame.

    Raises:
        TypeError: `train` or `test` is no `Dataset`, or an argument of the wrong kind.
        ValueError: the period is not positive, or the inputs of train and test have different names.
    """

    name: str
    train: Dataset
    test: Dataset
    x_unit: str
    y_unit: str
    source: str
    period: Annotated[float, Real("the period of a seasonal component, in units of x,", above=0)] | None = None
    truth: Annotated[bool, Flag("whether test has real observations")] = True

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            instance(getattr(self, name), Dataset, name, "a Dataset")
        if named_parts(self.train.x).keys() != named_parts(self.test.x).keys():
            raise ValueError(
                f"test must have the inputs of train, {', '.join(named_parts(self.train.x))}; got a Dataset of "
                f"{', '.join(named_parts(self.test.x))}"
            )

    def describe(self) -> str:
        return f"Split({self.name}, {len(self.train)} training and {len(self.test)} test rows)"

    @classmethod
    @checked
    def from_frame(
        cls,
        df: Any,
        target: Any,
        *,
        test: Annotated[float, Real("the fraction of the rows in the test part", above=0, below=1)] = 0.1,
        seed: Annotated[int, Count("the seed of the division", least=0)] = 0,
        categories: Sequence[Any] = (),
        encode: Encode = "one-hot",
        standardise: bool = True,
        name: str = "frame",
    ) -> Split:
        """Split the rows of a DataFrame at random; the standardisation is that of the training rows.

        The categories are those of all rows, so a rare category may occur only in the test part. Rows that belong together,
        such as those of one person, or of neighbouring times, are not kept together: split such a frame yourself, with
        `Dataset.from_frame` for the training rows and `Dataset.like` for the others.

        Args:
            test: fraction of the rows in the test part, rounded to at least one row.
            seed: seed of the random division.
            name: name of the split.
            df, target, categories, encode, standardise: as in `Dataset.from_frame`.

        Raises:
            TypeError, ValueError: as `Dataset.from_frame`; `test` is not between 0 and 1, or leaves fewer than two training
                rows.
        """
        size = len(checked_frame(df, "df"))
        order, held_out = (
            torch.randperm(size, generator=torch.Generator().manual_seed(seed)),
            max(1, round(test * size)),
        )
        if size - held_out < 2:
            raise ValueError(
                f"test must leave at least two training rows of {size}; got {test:g}, which is {held_out} test rows"
            )
        train, rest = order[held_out:].sort().values, order[:held_out].sort().values
        columns = read_frame(df, target, categories, encode, standardise, train.tolist())
        whole = Dataset._of_frame(df, *columns)
        return cls(name, whole.rows(train), whole.rows(rest), "", "", "a data frame")


class Splits(Described, Sequence[Split]):
    """The splits of a table into training and test rows: a sequence that creates each `Split` on access.

    Args:
        name: name of the table.
        x: inputs, ``[N, Q]``, float64, in the original units.
        y: observations, ``[N, 1]``, float64, in the original units.
        rows: indices of the training rows and of the test rows of every split, in the published order.
        source: source of the table.

    Raises:
        ValueError: x or y is not a table of finite numbers, or their lengths differ; a split has fewer than two training
            rows or no test row, or a row that does not exist or is used twice. On access: y is constant in the training
            rows.
        TypeError: an argument is of another type.
    """

    @checked
    def __init__(self, name: str, x: Tensor, y: Tensor, rows: Sequence[tuple[Any, Any]], source: str) -> None:
        for text, table in (("y", y), ("x", x)):
            if tensor(table, text, "a table of numbers").dim() != 2 or len(table) != len(y):
                raise ValueError(
                    f"{text} must be a table with a row for each of {len(y)} observations; got shape {list(table.shape)}"
                )
        self.name: str = name
        self.x: Tensor = x
        self.y: Tensor = y
        self.source: str = source
        self.rows: list[tuple[Tensor, Tensor]] = []
        for number, split in enumerate(rows):
            train, test = (tensor_of(part, f"rows of split {number}") for part in split)
            every = torch.cat([train, test])
            right = every.dtype == torch.int64 and len(train) > 1 and len(test) and len(every.unique()) == len(every)
            if not right or every.min() < 0 or every.max() >= len(y):
                raise ValueError(
                    f"rows of split {number} must be at least two training rows and one test row, whole numbers from 0 to "
                    f"{len(y) - 1}, each at most once; got {train.tolist()[:_SHOWN]} and {test.tolist()[:_SHOWN]}"
                )
            self.rows.append((train, test))

    def describe(self) -> str:
        return f"Splits({self.name}, {len(self)} of {len(self.y)} rows)"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        train, test = self.rows[number]
        training = standardized(self.x[train], self.y[train], f"split {number} of {self.name}")
        x, y = self.x[test].to(training.x), self.y[test].to(training.y)
        held_out = Dataset(x, y, inputs=training.inputs, targets=training.targets)
        return Split(f"{self.name}-{number}", training, held_out, "", "", self.source)


def standardized(x: Tensor, y: Tensor, name: str) -> Dataset:
    """Rows as a data set, float32 if `narrowed` allows it, with a standardisation computed from these rows in float64.

    Raises:
        ValueError: y is constant.
    """
    tables = [narrowed(values) for values in (x, y)]
    if not varies(y, tables[1].dtype).all():
        raise ValueError(f"{name} has a constant y, {float(y[0, 0]):g} in all {len(y)} rows: there is nothing to learn")
    inputs, targets = (
        Standardize.of(values.double(), table.dtype).to(table.dtype)
        for values, table in zip((x, y), tables, strict=True)
    )
    return Dataset(*tables, inputs=inputs, targets=targets)


def permuted(count: int, splits: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of the published splits of the UCI data sets.

    Split i uses the i-th permutation that ``numpy.random.RandomState(seed)`` draws. Its first ``round(0.9 * count)`` rows
    are the training rows.
    """
    draw = np.random.RandomState(seed)
    orders = [draw.choice(range(count), count, replace=False) for _ in range(splits)]
    first = round(0.9 * count)
    return [(order[:first], order[first:]) for order in orders]
