"""A data set in two parts: for training and for judging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import flag, positive, real, shown
from pyrodrop.data.column_values import checked_frame
from pyrodrop.data.columns import Encode
from pyrodrop.data.dataset import Dataset, of_frame
from pyrodrop.data.frame import read_frame
from pyrodrop.inputs import named_parts


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
        truth: whether `test` has real observations. If False, its y only has the right shape.

    `Split.from_frame` divides the rows of a pandas DataFrame.

    Raises:
        TypeError: a part is not a `Dataset`, or an argument of the wrong kind.
        ValueError: the period is not positive, or the parts have different inputs.
    """

    name: str
    train: Dataset
    test: Dataset
    x_unit: str
    y_unit: str
    source: str
    period: float | None = None
    truth: bool = True

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            if not isinstance(getattr(self, part), Dataset):
                raise TypeError(f"{part} must be a Dataset; got {shown(getattr(self, part))}")
        for word in ("name", "x_unit", "y_unit", "source"):
            if not isinstance(getattr(self, word), str):
                raise TypeError(f"{word} must be a str; got {shown(getattr(self, word))}")
        if named_parts(self.train.x).keys() != named_parts(self.test.x).keys():
            raise ValueError(
                f"test must have the inputs of train, {', '.join(named_parts(self.train.x))}; got a Dataset of "
                f"{', '.join(named_parts(self.test.x))}"
            )
        if self.period is not None:
            positive(self.period, "period", "the period of a seasonal component, in units of x,")
        flag(self.truth, "truth", "whether test has real observations")

    @classmethod
    def from_frame(
        cls,
        df: Any,
        target: Any,
        *,
        test: float = 0.1,
        seed: int = 0,
        categories: Sequence[Any] = (),
        encode: Encode = "one-hot",
        standardise: bool | Sequence[Any] = True,
        name: str = "frame",
    ) -> Split:
        """Random rows of a pandas DataFrame as training and test part; the standardisation is that of the training rows.

        The categories are those of all rows, so that a rare one may be in the test part alone. Rows that belong together,
        such as those of one person, or of neighbouring times, are not kept together: split such a frame yourself, with
        `Dataset.from_frame` for the training rows and `Dataset.like` for the others.

        Args:
            test: fraction of the rows in the test part, rounded to at least one row.
            seed: of the division.
            name: of the split.
            df, target, categories, encode, standardise: as in `Dataset.from_frame`.

        Raises:
            TypeError, ValueError: as `Dataset.from_frame`; `test` is not between 0 and 1, or leaves fewer than two training
                rows.
        """
        fraction = real(test, "test", "the fraction of the rows in the test part", above=0, below=1)
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, the name of the split; got {shown(name)}")
        size = len(checked_frame(df, "df"))
        generator = torch.Generator().manual_seed(whole_number(seed, "seed", "the seed of the division", least=0))
        order, held = torch.randperm(size, generator=generator), max(1, round(fraction * size))
        if size - held < 2:
            raise ValueError(
                f"test must leave at least two training rows of {size}; got {fraction:g}, which is {held} test rows"
            )
        train, rest = order[held:].sort().values, order[:held].sort().values
        whole = of_frame(read_frame(df, target, categories, encode, standardise, train.tolist()))
        return cls(name, whole.rows(train), whole.rows(rest), "", "", "a data frame")
