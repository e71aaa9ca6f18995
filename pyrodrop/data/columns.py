"""How the columns of a data frame become inputs and observations: numbers, categories, standardisation.

    one-hot    x = [numbers | one column of 0 and 1 per value of each category]      [N, D]
    codes      x = (numbers, codes)      [N, D] and [N, K], codes whole numbers from 0, for nn.Embedding

Columns keep the order of the frame, numbers first, as in ``pandas.get_dummies``, and are found by name in other frames.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.data.column_values import (
    Value,
    check_no_missing,
    checked_frame,
    coded,
    listed,
    numbers_of,
)
from pyrodrop.names import one_of
from pyrodrop.scaling import Standardize

Encode = Literal["one-hot", "codes"]


@dataclass(frozen=True, eq=False)
class Columns:
    """How the columns of a frame become x and y. `Dataset.from_frame` stores it in `Dataset.columns`.

    Attributes:
        numbers: names of the columns of numbers.
        indicators: names of the columns of bools, which become 0 and 1 in x.
        categories: the values of every column of categories, in the order of its codes.
        targets: names of the columns of y.
        classes: the values of y in the order of the class labels; None if y are numbers.
        encode: ``one-hot`` or ``codes``.
        ordered: whether the dtype of y declares that its classes have an order.
        scaled: for ``codes``, the standardisation of numbers and indicators that `x` applies, as a `Dataset` standardises
            only a single tensor; otherwise None.
        wide: names of the columns of numbers that float32 would round by too much, such as times in seconds. A table (x or
            y) with such a column is float64.
    """

    numbers: tuple[Hashable, ...]
    indicators: tuple[Hashable, ...]
    categories: Mapping[Hashable, tuple[Value, ...]]
    targets: tuple[Hashable, ...]
    classes: tuple[Value, ...] | None = None
    encode: Encode = "one-hot"
    scaled: Standardize | None = None
    ordered: bool = False
    wide: tuple[Hashable, ...] = ()

    def dtype(self, names: Sequence[Hashable]) -> torch.dtype:
        """The dtype of a table of these columns."""
        return torch.float64 if set(names) & set(self.wide) else torch.float32

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of x, such as ``age`` and ``kind=a``; those of codes are ``kind``."""
        plain = [str(name) for name in (*self.numbers, *self.indicators)]
        if self.encode == "codes":
            return (*plain, *(str(name) for name in self.categories))
        return (*plain, *(f"{name}={value}" for name, values in self.categories.items() for value in values))

    def x(self, frame: Any, name: str = "df") -> Any:
        """The inputs of a frame, whose columns are found by name; other columns are ignored.

        Args:
            frame: a DataFrame with the columns of the inputs, of any of the libraries that `Dataset.from_frame` reads.

        Returns:
            x as in the `Dataset`: ``[N, D]``; or for ``codes`` a pair ``[N, D]``, ``[N, K]``, or ``[N, K]`` alone.

        Raises:
            TypeError: `frame` is no DataFrame, or a column that had numbers has values of another kind.
            ValueError: a column is missing or occurs twice; values are missing or infinite; bools and numbers are
                exchanged; or a category is new.
        """
        frame = checked_frame(frame, name)
        self._check_present(frame, (*self.numbers, *self.indicators, *self.categories), name)
        check_no_missing(frame, (*self.numbers, *self.indicators, *self.categories), name)
        _check_no_bools(frame, self.numbers, name)
        numbers = numbers_of(frame, (*self.numbers, *self.indicators), name)
        for place, column in enumerate(self.indicators, len(self.numbers)):
            odd = numbers[:, place][~np.isin(numbers[:, place], (0, 1))]
            if len(odd):
                raise ValueError(
                    f"{name}, column {column!r}, had bools and must have bools, or 0 and 1; got {odd[0]:g} in {len(odd)} "
                    "rows"
                )
        plain = torch.from_numpy(numbers).to(self.dtype((*self.numbers, *self.indicators)))
        codes = [coded(frame, column, values, name) for column, values in self.categories.items()]
        if self.encode == "codes":
            whole = torch.stack(codes, 1)
            if not plain.shape[1]:
                return whole
            return (plain if self.scaled is None else self.scaled(plain).float()), whole
        sizes = map(len, self.categories.values())
        return torch.cat([plain, *(F.one_hot(code, size) for code, size in zip(codes, sizes, strict=True))], 1)

    def y(self, frame: Any, name: str = "df") -> Tensor:
        """The observations of a frame: ``[N, targets]``, NaN where missing, or class labels ``[N]``. Raises as `x`."""
        frame = checked_frame(frame, name)
        self._check_present(frame, self.targets, name)
        if self.classes is not None:
            check_no_missing(frame, self.targets, name)
            return coded(frame, self.targets[0], self.classes, name)
        _check_no_bools(frame, self.targets, name)
        return torch.from_numpy(numbers_of(frame, self.targets, name)).to(self.dtype(self.targets))

    def words(self) -> dict[str, Any]:
        """All attributes as plain lists, numbers and strings, for a file."""
        scaled = None if self.scaled is None else [self.scaled.loc.tolist(), self.scaled.scale.tolist()]
        return {
            "numbers": list(self.numbers), "indicators": list(self.indicators),
            "categories": [[name, list(values)] for name, values in self.categories.items()],
            "targets": list(self.targets), "classes": None if self.classes is None else list(self.classes),
            "encode": self.encode, "scaled": scaled, "ordered": self.ordered, "wide": list(self.wide),
        }  # fmt: skip

    @classmethod
    def of_words(cls, stored: Any, file: str) -> Columns:
        """The inverse of `words`; a ValueError that names `file` if `stored` is damaged."""
        try:
            names = [tuple(stored.get(key, ())) for key in ("numbers", "indicators", "targets", "wide")]
            if not all(isinstance(name, str | int) for key in names for name in key):
                raise TypeError("a name is no str")
            categories = {name: tuple(values) for name, values in stored["categories"]}
            classes = None if stored["classes"] is None else tuple(stored["classes"])
            dtype = torch.float64 if {*names[0]} & {*names[3]} else torch.float32
            numbers = (
                [] if stored["scaled"] is None else [torch.tensor(value, dtype=dtype) for value in stored["scaled"]]
            )
            scaled = Standardize(*numbers) if numbers else None
            encode, ordered = one_of(stored["encode"], Encode, "encode"), stored.get("ordered") is True
        except (AttributeError, TypeError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"{file} is damaged: it must say which columns of a frame it is of; got {error}") from None
        return cls(names[0], names[1], categories, names[2], classes, encode, scaled, ordered, names[3])

    def _check_present(self, frame: nw.DataFrame[Any], wanted: Sequence[Hashable], name: str) -> None:
        present = set(frame.columns)
        missing = [column for column in wanted if column not in present]
        if missing:
            raise ValueError(
                f"{name} must have the columns of the data set by name, {listed(wanted)}; got a frame without "
                f"{listed(missing)}"
            )


def _check_no_bools(frame: nw.DataFrame[Any], columns: Sequence[Hashable], name: str) -> None:
    """Raise a ValueError for bools in columns that had numbers: they would be read as 0 and 1 in the column's unit."""
    kinds = frame.schema
    bools = [column for column in columns if kinds[column] == nw.Boolean]  # type: ignore[index]
    if bools:
        raise ValueError(
            f"{name}, column {bools[0]!r}, had numbers and must have numbers; got bools: astype(float) makes 0 and 1"
        )
