"""Check and convert single columns of a data frame: names, numbers and categories.

Frames of pandas, polars and pyarrow are read by narwhals, https://narwhals-dev.github.io/narwhals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress
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
_READ = 1000  # values of a column of text that are compared with:
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", re.IGNORECASE)


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


def check_no_missing(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> None:
    """Raise a ValueError that names the columns with missing values, the number of rows with any, and the first such row."""
    kinds = frame.schema
    plain = [_is_number(kinds[label]) for label in labels]  # type: ignore[index]
    missing = np.empty((len(frame), len(labels)), dtype=bool)
    missing[:, np.flatnonzero(plain)] = np.isnan(_as_float64(frame, [*compress(labels, plain)]))
    for place, label in enumerate(labels):
        if not plain[place]:
            missing[:, place] = frame.get_column(label).is_null().to_numpy()  # type: ignore[arg-type]
    rows, counts = missing.any(1), missing.sum(0)
    if rows.any():
        wrong = [f"{label!r} in {count} rows" for label, count in zip(labels, counts, strict=True) if count]
        raise ValueError(
            f"{name} must have a value in every row; got missing values in {int(rows.sum())} of {len(frame)} rows, of "
            f"column {listed(wrong, str)}, first in row {int(rows.argmax())}: drop the rows, fill the values, or leave the "
            "column out"
        )


def check_numbers(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str, others: str, remedy: str) -> None:
    """Raise a TypeError that names the columns that are neither numbers nor bools.

    Args:
        labels: names of columns of the frame.
        name: name of the frame, for the message.
        others: which columns need not be numbers, for the message.
        remedy: advice on columns of text and categories; ``{}`` stands for their names.
    """
    kinds = frame.schema
    odd = [frame.get_column(label) for label in labels if not _is_number(kinds[label])]  # type: ignore[index, arg-type]
    if not odd:
        return
    numbers = [repr(column.name) for column in odd if _is_text_of_numbers(column)]
    texts = [repr(column.name) for column in odd if not column.dtype.is_temporal() and repr(column.name) not in numbers]
    hints = [remedy.format(", ".join(texts[:_SHOWN]))] if texts else []
    if numbers:
        hints.append(
            f"make numbers of the text of {listed(numbers, str)}, by pandas.to_numeric(column, errors='coerce') or, in "
            "polars, column.cast(float, strict=False)"
        )
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
    kinds = frame.schema
    for label in labels:
        if not _is_number(kinds[label]):  # type: ignore[index]
            raise TypeError(f"{name}, column {label!r}, must be of real numbers; got dtype {kinds[label]}")  # type: ignore[index]
    table = _as_float64(frame, labels)
    large = np.abs(table) > np.finfo(np.float32).max
    if large.any():
        place = int(large.any(0).argmax())
        rows = large[:, place]
        raise ValueError(
            f"{name}, column {labels[place]!r}, must be finite and at most 3.4e38, what float32 holds; got "
            f"{table[rows.argmax(), place]:g} in row {rows.argmax()}, the first of {rows.sum()}"
        )
    return table


def check_whole(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> None:
    """Raise a ValueError for whole numbers, such as long ids, with a range below 1,000 times float64's rounding error."""
    kinds = frame.schema
    labels = [label for label in labels if kinds[label].is_integer()]  # type: ignore[index]
    table = _as_float64(frame, labels)
    ends = np.fmin.reduce(table), np.fmax.reduce(table)
    near = ends[1] - ends[0] < np.abs(ends).max(0) * np.finfo(np.float64).eps / _ROUNDING
    for place in np.flatnonzero(near):  # exactly
        column = frame.get_column(labels[place]).drop_nulls()  # type: ignore[arg-type]
        low, high = int(column.min()), int(column.max())
        rounding = max(abs(low), abs(high)) * np.finfo(np.float64).eps / 2
        if 0 < high - low < rounding / _ROUNDING:
            raise ValueError(
                f"{name}, column {labels[place]!r}, must vary by more than float64 rounds its values; got values from {low} "
                f"to {high}: subtract the smallest, or leave the column out"
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


def _is_number(kind: nw.dtypes.DType) -> bool:
    return kind.is_numeric() or kind == nw.Boolean


def _is_text_of_numbers(column: nw.Series[Any]) -> bool:
    """Whether most of the first values of a column of text are numbers."""
    texts = column.drop_nulls().head(_READ).to_list() if column.dtype == nw.String else []
    return sum(bool(_NUMBER.fullmatch(text)) for text in texts) > len(texts) / 2


def _as_float64(frame: nw.DataFrame[Any], labels: Sequence[Hashable]) -> np.ndarray[Any, Any]:
    """Columns of numbers and bools, converted together, ``[N, columns]``; missing values are NaN."""
    if not labels:
        return np.empty((len(frame), 0))
    if frame.implementation.is_pandas_like():
        table = frame.to_native()[list(labels)].to_numpy(np.float64, na_value=np.nan)
    else:
        table = frame.select(nw.col(*labels).cast(nw.Float64)).to_numpy()  # type: ignore[arg-type]
    return np.array(table, order="C")
