"""The columns of a data frame one by one: names, numbers and categories, checked.

pandas is not imported: its tables are known by their methods.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.arrays import is_frame

Value = str | int | float | bool

_ROUNDING = 1e-3  # of a column's range, what float64 may change its values by
_SHOWN = 5  # names and values in a message


def checked_frame(frame: Any, name: str) -> Any:
    """A DataFrame with rows, whose columns have one name each."""
    if not is_frame(frame):
        hint = ": pass it as .to_pandas()" if hasattr(frame, "to_pandas") else ""
        raise TypeError(f"{name} must be a pandas DataFrame; got {shown(frame)}{hint}")
    if getattr(frame.columns, "nlevels", 1) > 1:
        raise TypeError(
            f"{name} must have columns with one name each; got a DataFrame whose names have {frame.columns.nlevels} levels"
        )
    labels = list(frame.columns)
    odd = [label for label in labels if not isinstance(label, str | int) or isinstance(label, bool)]
    if odd:
        raise TypeError(f"{name} must have columns whose names are str or whole numbers; got {odd[0]!r}")
    twice = sorted({str(label) for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(
            f"{name} must have columns of different names; got a DataFrame with more than one called {listed(twice)}"
        )
    if not len(frame):
        raise ValueError(f"{name} must have at least one row; got a DataFrame of shape {list(frame.shape)}")
    return frame


def named(given: Any, labels: Sequence[Hashable], argument: str) -> list[Hashable]:
    """The columns that an argument names: one name, or a list of names."""
    if isinstance(given, str | np.integer) or (isinstance(given, int) and not isinstance(given, bool)):
        given = [given]
    given = (
        [int(one) if isinstance(one, np.integer) else one for one in given] if type(given) in (list, tuple) else given
    )
    if not isinstance(given, list | tuple):
        raise TypeError(f"{argument} must be the name of a column or a list of names; got {shown(given)}")
    for one in given:
        if not isinstance(one, str | int) or isinstance(one, bool):
            raise TypeError(f"{argument} must be the name of a column or a list of names; got {shown(one)} in it")
        if one not in labels:
            near = difflib.get_close_matches(str(one), list(map(str, labels)), 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{argument} must name columns of df, {listed(labels)}; got {one!r}{hint}")
    if len(set(given)) < len(given):
        raise ValueError(f"{argument} must name every column once; got {given!r}")
    return list(given)


def check_no_missing(frame: Any, labels: Iterable[Hashable], name: str) -> None:
    """Raise a ValueError that names the columns with missing or infinite values and the numbers of their rows."""
    counts = {label: int(np.asarray(frame[label].isna()).sum()) for label in labels}
    wrong = [f"{label!r} in {count} rows" for label, count in counts.items() if count]
    if wrong:
        rows = int(np.asarray(frame[[label for label, count in counts.items() if count]].isna()).any(1).sum())
        raise ValueError(
            f"{name} must have a value in every row; got missing values in {rows} of {len(frame)} rows, of column "
            f"{listed(wrong, str)}: drop the rows (.dropna()), fill the values, or leave the column out"
        )


def kind_of(column: Any) -> str:
    """NumPy's kind of the values of a column: that of its dtype, or "f" for numbers of dtype object, as databases give them.

    Numbers are int, float, Decimal, Fraction and NumPy's scalars; missing values are passed over.
    """
    kind = getattr(column.dtype, "kind", "O")
    if kind != "O" or hasattr(column, "cat"):
        return str(kind)
    numbers, others = _types(column)
    return "f" if numbers and not others else "O"


def check_unmixed(frame: Any, labels: Iterable[Hashable]) -> None:
    """Raise a TypeError that names a column with numbers and other values, such as text, and one of these."""
    for label in labels:
        column = frame[label]
        if getattr(column.dtype, "kind", "O") != "O" or hasattr(column, "cat"):
            continue
        numbers, others = _types(column)
        if numbers and others:
            number, other = (next(one for one in _present(column) if type(one) in kinds) for kinds in (numbers, others))
            raise TypeError(
                f"df must have values of one kind in every column; got column {label!r} of dtype {column.dtype} with the "
                f"number {number} and the {type(other).__name__} {other!r}: make all of them numbers (pd.to_numeric) or "
                "text (.astype(str))"
            )


def check_numbers(columns: Iterable[tuple[Hashable, Any]], name: str, others: str, remedy: str) -> None:
    """Raise a TypeError that names the columns that are no numbers.

    Args:
        columns: names and columns.
        name: of the frame.
        others: which of its columns need not be numbers, for the message.
        remedy: what to do with text and categories; ``{}`` stands for their names.
    """
    odd = [(label, column.dtype) for label, column in columns if kind_of(column) not in "biuf"]
    if not odd:
        return
    times = [label for label, dtype in odd if getattr(dtype, "kind", "O") in "mM"]
    texts = [label for label, dtype in odd if getattr(dtype, "kind", "O") not in "mM"]
    hints = []
    if texts:
        hints.append(remedy.format(", ".join(map(repr, texts[:_SHOWN]))))
    if times:
        hints.append(
            f"convert times to numbers, such as days since the first, (t - t.min()).dt.days with t = {name}[{times[0]!r}]"
        )
    described = [f"{label!r} of dtype {dtype}" for label, dtype in odd]
    raise TypeError(
        f"{name} must have numbers in every column{others}; got column {listed(described, str)}: "
        f"{', '.join(hints)}, or leave it out ({name}.drop(columns=...))"
    )


def numbers_of(frame: Any, labels: Sequence[Hashable], name: str) -> np.ndarray[Any, Any]:
    """Columns of finite numbers as float64, ``[N, columns]``; missing values are NaN."""
    table = np.empty((len(frame), len(labels)))
    for place, label in enumerate(labels):
        column = frame[label]
        if kind_of(column) not in "biuf":
            raise TypeError(f"{name}, column {label!r}, must be of real numbers; got dtype {column.dtype}")
        values = column.map(_float, na_action="ignore") if _boxed(column) else column
        table[:, place] = values.to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = int(np.isinf(table[:, place]).sum())
        if wrong:
            raise ValueError(f"{name}, column {label!r}, must be finite; got infinite values in {wrong} rows")
    return table


def in_float32(values: np.ndarray[Any, Any], labels: Sequence[Hashable], name: str) -> Tensor:
    """The values in float32; a ValueError for those that are too large for it."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    for place, label in enumerate(labels):
        if np.isinf(rounded[:, place]).any():
            largest = np.nanmax(np.abs(values[:, place]))
            raise ValueError(
                f"{name}, column {label!r}, must be at most 3.4e38, what float32 holds; got {largest:g}: divide it by a "
                "constant"
            )
    return torch.from_numpy(rounded)


def check_whole(frame: Any, labels: Iterable[Hashable], name: str) -> None:
    """Raise a ValueError for a column of exact numbers, such as long ids, that differ by less than float64 rounds them."""
    for label in labels:
        if not (_boxed(frame[label]) or kind_of(frame[label]) in "iu"):
            continue
        column = frame[label].dropna()
        near = numbers_of(frame.loc[:, [label]].dropna(), [label], name)
        if not len(near) or np.abs(near).max() * np.finfo(np.float64).eps <= _ROUNDING * np.ptp(near):
            continue  # rounding is too small to matter
        exact = [_exact(one) for one in column.unique()]
        low, high = min(exact), max(exact)
        if max(abs(one - Fraction(float(one))) for one in exact) > Fraction(_ROUNDING) * (high - low) > 0:
            raise ValueError(
                f"{name}, column {label!r}, must vary by more than float64 rounds its values; got values from {low} to "
                f"{high}: subtract the smallest, or leave the column out"
            )


def values_of(frame: Any, label: Hashable) -> tuple[Value, ...]:
    """The values of a column of categories: those that its dtype declares, in their order; otherwise sorted."""
    column = frame[label]
    declared = hasattr(column, "cat")
    values = [_plain(value, label) for value in (column.cat.categories if declared else _distinct(column, label))]
    kinds = {
        "text" if isinstance(value, str) else "bools" if isinstance(value, bool) else "numbers" for value in values
    }
    if len(kinds) > 1:
        raise TypeError(
            f"df, column {label!r}, must have categories of one kind, text, numbers or bools; got "
            f"{' and '.join(sorted(kinds))}: convert them with .astype(str)"
        )
    return tuple(values if declared else sorted(values))


def coded(frame: Any, label: Hashable, values: Sequence[Value], name: str) -> np.ndarray[Any, Any]:
    """A column of categories as the places of its values, int64 ``[N]``."""
    column = frame[label]
    known = {value: place for place, value in enumerate(values)}
    given = [_plain(value, label) for value in _distinct(column, label)]
    unseen = [value for value in given if value not in known]
    if unseen:
        rows = int(np.asarray(column.isin(unseen)).sum())
        raise ValueError(
            f"{name}, column {label!r}, must have the categories of the data set, {listed(values)}; got {listed(unseen)} in "
            f"{rows} rows"
        )
    return np.array(column.astype("object").map(known), dtype=np.int64)  # a copy: those of pandas may be read-only


def listed(values: Iterable[Any], word: Callable[[Any], str] = repr) -> str:
    """A few of the values for a message."""
    values = list(values)
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(map(word, values[:_SHOWN])) + more


def _boxed(column: Any) -> bool:
    """Whether the numbers of a column are objects."""
    return kind_of(column) == "f" and getattr(column.dtype, "kind", "O") == "O"


def _present(column: Any) -> Any:
    """The values that are not missing."""
    return column.to_numpy(dtype=object)[~np.asarray(column.isna())]


def _types(column: Any) -> tuple[set[type], set[type]]:
    """The types of the values that are not missing: of numbers, and others."""
    types = set(map(type, _present(column)))
    numbers = {one for one in types if issubclass(one, Real | Decimal) and not issubclass(one, bool | np.bool_)}
    return numbers, types - numbers


def _float(value: Any) -> float:
    """A number in float64, infinite if it is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _exact(value: Any) -> Fraction:
    value = value.item() if isinstance(value, np.generic) else value
    return Fraction(*value.as_integer_ratio())


def _distinct(column: Any, label: Hashable) -> Iterable[Any]:
    """The values that occur in a column."""
    try:
        return column.unique()  # type: ignore[no-any-return]
    except TypeError:  # not hashable, such as lists
        for value in column:
            _plain(value, label)
        raise


def _plain(value: Any, label: Hashable) -> Value:
    """A category as Python's own str, bool or number."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, str | int | float | bool):
        raise TypeError(
            f"df, column {label!r}, must have text, whole numbers or bools as categories; got a {type(value).__name__}: "
            "convert them with .astype(str)"
        )
    return value
