"""Check and convert single columns of a data frame: names, numbers and categories.

Frames of pandas, polars and pyarrow are read by narwhals, https://narwhals-dev.github.io/narwhals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.arrays import as_table
from pyrodrop.names import did_you_mean

Value = str | int | float | bool

_ROUNDING = 1e-3  # the most that float64 may change the values of a column by, relative to their range
_SHOWN = 5  # names and values in a message


def checked_frame(frame: Any, name: str) -> nw.DataFrame[Any]:
    """`frame` as a narwhals DataFrame; an error unless it has rows, and columns with different names, str or int."""
    table = as_table(frame, name)
    if not isinstance(table, nw.DataFrame):
        raise TypeError(f"{name} must be a DataFrame of pandas or polars, or a Table of pyarrow; got {shown(frame)}")
    odd = [label for label in table.columns if not isinstance(label, str | int) or isinstance(label, bool)]
    if odd:
        raise TypeError(
            f"{name} must have columns whose names are str or whole numbers; got a DataFrame with {odd[0]!r}"
        )
    if not len(table):
        raise ValueError(f"{name} must have at least one row; got a DataFrame of shape {list(table.shape)}")
    return table


def named(names: Any, labels: Sequence[Hashable], argument: str) -> list[Hashable]:
    """The columns that an argument names: one name, or a list of names."""
    names = list(names) if isinstance(names, list | tuple) else [names]
    for name in names:
        if not isinstance(name, str | int | np.integer) or isinstance(name, bool):
            raise TypeError(f"{argument} must be the name of a column or a list of names; got {shown(name)}")
        if name not in labels:
            raise ValueError(
                f"{argument} must name columns of df, {listed(labels)}; got {name!r}"
                f"{did_you_mean(name, [label for label in labels if isinstance(label, str)], 0.5)}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"{argument} must name every column once; got {names!r}")
    return [labels[labels.index(name)] for name in names]  # not NumPy's numbers


def check_no_missing(frame: nw.DataFrame[Any], labels: Iterable[Hashable], name: str) -> None:
    """Raise a ValueError that names the columns with missing values, the number of rows with any, and the first such row."""
    missing = {label: _missing(frame.get_column(label)) for label in labels}  # type: ignore[arg-type]
    wrong = [f"{label!r} in {int(rows.sum())} rows" for label, rows in missing.items() if rows.any()]
    if wrong:
        rows = np.any(list(missing.values()), axis=0)
        raise ValueError(
            f"{name} must have a value in every row; got missing values in {int(rows.sum())} of {len(frame)} rows, of "
            f"column {listed(wrong, str)}, first in row {int(rows.argmax())}: drop the rows, fill the values, or leave the "
            "column out"
        )


def check_numbers(columns: Iterable[nw.Series[Any]], name: str, others: str, remedy: str) -> None:
    """Raise a TypeError that names the columns that are neither numbers nor bools.

    Args:
        columns: columns of the frame.
        name: name of the frame, for the message.
        others: which columns need not be numbers, for the message.
        remedy: advice on columns of text and categories; ``{}`` stands for their names.
    """
    odd = [column for column in columns if not (column.dtype.is_numeric() or column.dtype == nw.Boolean)]
    if not odd:
        return
    texts = [repr(column.name) for column in odd if not column.dtype.is_temporal()]
    hints = [remedy.format(", ".join(texts[:_SHOWN]))] if texts else []
    if any(column.dtype.is_temporal() for column in odd):
        hints.append("convert times to numbers, such as days since the first")
    if nw.Object in [column.dtype for column in odd]:
        hints.append("convert objects to numbers, .astype(float), or text, .astype(str)")
    described = [f"{column.name!r} of dtype {column.dtype}" for column in odd]
    raise TypeError(
        f"{name} must have numbers in every column{others}; got column {listed(described, str)}: {', '.join(hints)}, or "
        "leave it out"
    )


def numbers_of(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> np.ndarray[Any, Any]:
    """Columns of numbers that float32 can hold, as float64, ``[N, columns]``; missing values are NaN."""
    table = np.empty((len(frame), len(labels)))
    for place, label in enumerate(labels):
        column = frame.get_column(label)  # type: ignore[arg-type]
        if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
            raise TypeError(f"{name}, column {label!r}, must be of real numbers; got dtype {column.dtype}")
        table[:, place] = column.cast(nw.Float64).to_numpy()
        large = np.abs(table[:, place]) > np.finfo(np.float32).max
        if large.any():
            raise ValueError(
                f"{name}, column {label!r}, must be finite and at most 3.4e38, what float32 holds; got "
                f"{table[large.argmax(), place]:g} in row {large.argmax()}, the first of {large.sum()}"
            )
    return table


def check_whole(frame: nw.DataFrame[Any], labels: Iterable[Hashable], name: str) -> None:
    """Raise a ValueError for whole numbers, such as long ids, with a range below 1,000 times float64's rounding error."""
    for label in labels:
        column = frame.get_column(label).drop_nulls()  # type: ignore[arg-type]
        if not column.dtype.is_integer() or not len(column):
            continue
        low, high = int(column.min()), int(column.max())
        rounding = max(abs(low), abs(high)) * np.finfo(np.float64).eps / 2
        if 0 < high - low < rounding / _ROUNDING:
            raise ValueError(
                f"{name}, column {label!r}, must vary by more than float64 rounds its values; got values from {low} to "
                f"{high}: subtract the smallest, or leave the column out"
            )


def values_of(frame: nw.DataFrame[Any], label: Hashable) -> tuple[Value, ...]:
    """The values of a column of categories: those that its dtype declares, in their order, or those that occur, sorted."""
    column = _categories(frame, label, "df")
    if column.dtype in (nw.Categorical, nw.Enum) and column.implementation.is_pandas_like():
        values = column.to_native().cat.categories.tolist()
    elif isinstance(column.dtype, nw.Enum):
        values = list(column.dtype.categories)
    else:
        values = sorted(column.unique().to_list())
    odd = [value for value in values if not isinstance(value, Value)]
    if odd:
        raise TypeError(
            f"df, column {label!r}, must have text, numbers or bools as categories; got {odd[0]!r}: convert them to text, "
            ".astype(str)"
        )
    return tuple(values)


def coded(frame: nw.DataFrame[Any], label: Hashable, values: Sequence[Value], name: str) -> Tensor:
    """A column of categories as indices into its values, int64 ``[N]``."""
    known = {value: place for place, value in enumerate(values)}
    labels = _categories(frame, label, name).to_list()
    unseen = [value for value in dict.fromkeys(labels) if value not in known]
    if unseen:
        rows = sum(value not in known for value in labels)
        raise ValueError(
            f"{name}, column {label!r}, must have the categories of the data set, {listed(values)}; got {listed(unseen)} in "
            f"{rows} rows"
        )
    return torch.tensor([known[value] for value in labels])


def is_label(column: nw.Series[Any]) -> bool:
    """Whether the values of a column are text, categories or bools."""
    return column.dtype in (nw.String, nw.Categorical, nw.Enum, nw.Boolean)


def listed(values: Iterable[Any], word: Callable[[Any], str] = repr) -> str:
    """A few of the values for a message."""
    values = list(values)
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(map(word, values[:_SHOWN])) + more


def _categories(frame: nw.DataFrame[Any], label: Hashable, name: str) -> nw.Series[Any]:
    """A column of text, numbers, bools or declared categories."""
    column = frame.get_column(label)  # type: ignore[arg-type]
    if not (is_label(column) or column.dtype.is_integer() or column.dtype.is_float()):
        raise TypeError(
            f"{name}, column {label!r}, must have text, numbers or bools as categories; got dtype {column.dtype}: convert "
            "them to text, .astype(str)"
        )
    return column


def _missing(column: nw.Series[Any]) -> np.ndarray[Any, Any]:
    """Which values are null or NaN."""
    missing = column.is_null().to_numpy()
    return missing | np.isnan(column.cast(nw.Float64).to_numpy()) if column.dtype.is_float() else missing
