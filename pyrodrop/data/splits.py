"""Data in a training and a test part, and tables with their published train-test splits.

The standardisation of a split is computed from its training rows: mean 0 and standard deviation 1 (dividing by N). A
constant input column is only centred, as in the released code of Gal & Ghahramani (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from pyrodrop.checks import Count, Flag, Real, checked, instance, named_parts
from pyrodrop.data.columns import checked_frame, read_frame
from pyrodrop.data.dataset import Dataset
from pyrodrop.scaling import Standardize, narrowed, varies


@checked
@dataclass(frozen=True)
class Split:
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
        name: str = "frame",
    ) -> Split:
        """Split the rows of a DataFrame at random; standardisation and values for gaps are those of the training rows.

        The categories are those of all rows, so a rare category may occur only in the test part. Rows that belong together,
        such as those of one person, or of neighbouring times, are not kept together: split such a frame yourself, with
        `Dataset.from_frame` for the training rows and `Dataset.like` for the others.

        Args:
            test: fraction of the rows in the test part, rounded to at least one row.
            seed: seed of the random division.
            name: name of the split.
            df, target, categories: as in `Dataset.from_frame`.

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
        columns = read_frame(df, target, categories, train.tolist())
        whole = Dataset._of_frame(df, *columns)
        return cls(name, whole.rows(train), whole.rows(rest), "", "", "a data frame")


class Splits(Sequence[Split]):
    """The splits of a table into training and test rows: a sequence that creates each `Split` on access.

    Attributes:
        x, y: the table, ``[N, D]`` and ``[N, 1]``, float64, in the original units.
        rows: indices of the training rows and of the test rows of every split, in the published order.
    """

    def __init__(self, name: str, x: Tensor, y: Tensor, rows: Sequence[tuple[Any, Any]], source: str) -> None:
        self.name, self.x, self.y, self.source = name, x, y, source
        self.rows = [(torch.as_tensor(train), torch.as_tensor(test)) for train, test in rows]

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
