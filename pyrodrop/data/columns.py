"""How the columns of a data frame become inputs and observations: numbers, categories, gaps, standardisation.

    x = [numbers | bools as 0 and 1 | 1 where a number or bool is missing | one column of 0 and 1 per value of each category]

Numbers are standardised, the other columns stay 0 and 1. Columns keep the order of the frame and are found by name in other
frames. Text and categorical dtypes are categories, and gaps are filled:

    numbers     by their median, bools by their more frequent value; if they have gaps, x also has a column of 0 and 1
    categories  by a category of their own if they have gaps, otherwise by their most frequent value

Frames of pandas, polars and pyarrow are read by narwhals, https://narwhals-dev.github.io/narwhals.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.arrays import as_table
from pyrodrop.checks import all_finite, did_you_mean, shown
from pyrodrop.scaling import ROUNDING, Standardize, varies, within

Value = str | int | float | bool
Numbers = np.ndarray[Any, Any]
_MOST_VALUES = 20  # of text, unless these are at most half as many as rows

_log = logging.getLogger("pyrodrop")
_SHOWN = 5  # names and values in a message


@dataclass(frozen=True, eq=False)
class Columns:
    """How the columns of a frame become x and y. `Dataset.from_frame` stores it in `Dataset.columns`.

    Attributes:
        numbers: names of the columns of numbers.
        indicators: names of the columns of bools, which become 0 and 1 in x.
        categories: the values of every column of categories, in the order of their columns of x; None is a missing value.
        targets: names of the columns of y.
        classes: the values of y in the order of the class labels; None if y are numbers.
        wide: names of the columns of numbers that float32 would round by too much, such as times in seconds. A table (x or
            y) with such a column is float64.
        fills: the value that replaces missing ones, for every column of x.
        gaps: names of the numbers and indicators that have a column of x which is 1 where they are missing.
    """

    numbers: tuple[Hashable, ...]
    indicators: tuple[Hashable, ...] = ()
    categories: Mapping[Hashable, tuple[Value | None, ...]] = field(default_factory=dict)
    targets: tuple[Hashable, ...] = ()
    classes: tuple[Value, ...] | None = None
    wide: tuple[Hashable, ...] = ()
    fills: Mapping[Hashable, Value | None] = field(default_factory=dict)
    gaps: tuple[Hashable, ...] = ()

    def dtype(self, names: Sequence[Hashable]) -> torch.dtype:
        """The dtype of a table of these columns."""
        return torch.float64 if set(names) & set(self.wide) else torch.float32

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of x, such as ``age`` and ``kind=a``."""
        of_values = [(name, value) for name, values in self.categories.items() for value in values]
        return (
            *map(str, (*self.numbers, *self.indicators)),
            *(f"{name} is missing" for name in self.gaps),
            *(f"{name} is missing" if value is None else f"{name}={value}" for name, value in of_values),
        )

    def x(self, frame: Any, name: str = "df") -> Tensor:
        """The inputs ``[N, D]`` of a frame, whose columns are found by name; other columns are ignored.

        Raises:
            TypeError: `frame` is no DataFrame, or a column that had numbers has values of another kind.
            ValueError: a column is missing or occurs twice; values are infinite; bools and numbers are exchanged; or a
                category is new.
        """
        plain = (*self.numbers, *self.indicators)
        frame = _with(frame, (*plain, *self.categories), name)
        numbers = _numbers_of(frame, plain, name, self.indicators)
        codes = {c: _coded(frame, c, values, name, self.fills.get(c)) for c, values in self.categories.items()}
        dummies = (F.one_hot(code, len(self.categories[c])) for c, code in codes.items())
        return torch.cat([self.table(numbers), *dummies], 1)

    def table(self, numbers: Numbers) -> Tensor:
        """Numbers and indicators ``[N, columns]`` with their gaps (NaN) filled, and the columns of `gaps`."""
        names = (*self.numbers, *self.indicators)
        missing = np.isnan(numbers)
        filled = np.where(missing, np.array([self.fills[name] for name in names], np.float64), numbers)
        gaps = missing[:, [names.index(name) for name in self.gaps]]
        return torch.from_numpy(np.concatenate([filled, gaps], 1)).to(self.dtype(names))

    def y(self, frame: Any, name: str = "df") -> Tensor:
        """The observations of a frame: ``[N, targets]``, NaN where missing, or class labels ``[N]``. Raises as `x`."""
        frame = _with(frame, self.targets, name)
        if self.classes is not None:
            return _coded(frame, self.targets[0], self.classes, name)
        return torch.from_numpy(_numbers_of(frame, self.targets, name, ())).to(self.dtype(self.targets))

    def words(self) -> dict[str, Any]:
        """All attributes as plain lists, numbers and strings, for a file."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        categories = [[name, list(values)] for name, values in self.categories.items()]
        return plain | {"categories": categories, "fills": [list(pair) for pair in self.fills.items()]}

    @classmethod
    def of_words(cls, stored: Any, file: str) -> Columns:
        """The inverse of `words`; a ValueError that names `file` if `stored` is damaged."""
        try:
            if stored.get("encode", "one-hot") != "one-hot":
                raise ValueError("codes of categories, which are no longer read")
            names = {key: tuple(stored.get(key, ())) for key in ("numbers", "indicators", "targets", "wide", "gaps")}
            if not all(isinstance(name, str | int) for each in names.values() for name in each):
                raise TypeError("a name is no str")
            return cls(
                **names,
                categories={name: tuple(values) for name, values in stored["categories"]},
                classes=None if stored["classes"] is None else tuple(stored["classes"]),
                fills=dict(stored["fills"]),
            )
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{file} is damaged: it must say which columns of a frame it is of; got {error}") from None


def read_frame(
    df: Any, target: Any, categories: Any = (), rows: Any = None
) -> tuple[Columns, Standardize | None, Standardize | None]:
    """The columns of a frame, and the standardisations of x and y. Arguments and errors are those of `Dataset.from_frame`.

    Args:
        rows: indices of the rows from which fills and standardisation are computed; all if None.
    """
    df = checked_frame(df, "df")
    targets, named = _named(target, df, "target"), _named(categories, df, "categories")
    inputs = [label for label in df.columns if label not in targets]
    if not targets or not inputs:
        raise ValueError(
            f"target must name at least one column, and leave one as input; got {listed(targets) or 'none'}"
        )
    classes = _classes_of(df, targets, named)
    columns, of_x = _inputs(df, inputs, [label for label in named if label in inputs], rows, "df")
    columns = replace(columns, targets=tuple(targets), classes=classes)
    if classes is not None:
        return columns, of_x, None
    y = torch.from_numpy(_numbers_of(df, targets, "df")[slice(None) if rows is None else rows])
    all_finite(y, "target")
    columns = replace(columns, wide=(*columns.wide, *_wide(targets, y)))
    changes = varies(y, columns.dtype(targets)).tolist()
    if not all(changes):
        constant = changes.index(False)
        raise ValueError(
            f"target must vary, or there is nothing to learn; got {float(y[:, constant].sort().values[0]):g} in all "
            f"{len(y)} rows to learn from of {targets[constant]!r}"
        )
    return columns, of_x, Standardize.of(y, columns.dtype(targets)).to(columns.dtype(targets))


def read_inputs(x: Any, name: str) -> tuple[Columns, Standardize | None]:
    """The columns of a frame of inputs alone, or of an array of numbers ``[N, D]``, some of them NaN."""
    if isinstance(x, np.ndarray):
        return _filled(Columns(tuple(range(x.shape[1]))), x)
    frame = checked_frame(x, name)
    return _inputs(frame, frame.columns, [], None, name)


def _inputs(
    frame: nw.DataFrame[Any], inputs: Sequence[Any], named: Sequence[Hashable], rows: Any, name: str
) -> tuple[Columns, Standardize | None]:
    """The columns of x, of which those `named` are categories, and their standardisation."""
    kinds, plain, categories, fills = frame.schema, [], {}, {}
    for label in inputs:
        kind = kinds[label]
        if label not in named and (kind.is_numeric() or kind == nw.Boolean):
            plain.append(label)
            continue
        if label not in named and not _is_label(kind):
            raise TypeError(
                f"{name} must have numbers or categories in every column; got column {label!r} of dtype {kind}: make "
                "numbers of it, by pandas.to_numeric(column) or, in polars, column.cast(float), or text, or leave it out; "
                "of a date, (date - date.min()).dt.total_seconds() / 86400 or date.dt.month"
            )
        categories[label] = values = _values_of(frame, label, name)
        if label not in named and kind == nw.String and len(values) > max(_MOST_VALUES, len(frame) // 2):
            raise ValueError(
                f"{name}, column {label!r}, must have text whose values repeat, to be categories; got {len(values)} values "
                f"in {len(frame)} rows: leave the column out, or replace it by what matters of it"
            )
        counts = Counter(_labels(frame, label, name))
        fills[label] = None if None in values else max(values, key=counts.__getitem__)
    bools = tuple(label for label in plain if kinds[label] == nw.Boolean)
    numbers = tuple(label for label in plain if label not in bools)
    table = _numbers_of(frame, (*numbers, *bools), name)
    return _filled(Columns(numbers, bools, categories, fills=fills), table if rows is None else table[rows])


def _filled(columns: Columns, table: Numbers) -> tuple[Columns, Standardize | None]:
    """The columns with fills for the numbers and indicators ``[N, columns]``, and the standardisation of x."""
    missing, count = np.isnan(table), len(columns.numbers)
    middles = np.nanmedian(np.where(missing.all(0), 0.0, table), 0) if table.shape[1] else np.empty(0)
    middles[count:] = np.floor(middles[count:])  # of as many ones as zeros
    names = (*columns.numbers, *columns.indicators)
    gaps = tuple(name for place, name in enumerate(names) if missing[:, place].any())
    x = torch.from_numpy(np.where(missing, middles, table)[:, :count])
    fills = {**dict(zip(names, middles.tolist(), strict=True)), **columns.fills}
    columns = replace(columns, fills=fills, gaps=gaps, wide=_wide(columns.numbers, x))
    if not count:
        return columns, None
    dtype = columns.dtype(columns.numbers)
    of, others = Standardize.of_inputs(x, dtype), len(columns.names) - count
    loc, scale = torch.cat([of.loc, of.loc.new_zeros(others)]), torch.cat([of.scale, of.scale.new_ones(others)])
    return columns, Standardize(loc.to(dtype), scale.to(dtype))


def _wide(names: Sequence[Hashable], values: Tensor) -> tuple[Hashable, ...]:
    """The names of the columns that float32 would round by too much."""
    narrow = within(values, torch.float32, ROUNDING).tolist()
    return tuple(name for name, held in zip(names, narrow, strict=True) if not held)


def _classes_of(
    frame: nw.DataFrame[Any], targets: Sequence[Any], named: Sequence[Hashable]
) -> tuple[Value, ...] | None:
    """The class labels of y if it is text, categories or bools, or named in `categories`; None if y are numbers."""
    for label in targets:
        column = frame.get_column(label)
        if label in named or _is_label(column.dtype) or column.dtype == nw.Boolean:
            if len(targets) > 1:
                raise ValueError(
                    f"target must be one column if it has class labels, or columns of numbers; got {listed(targets)}, of "
                    f"which {label!r} has labels"
                )
            values = _values_of(frame, label, "df")
            if None in values or len(values) < 2:
                raise ValueError(
                    f"target must have a class in every row, and at least two classes; got {listed(values)}, where None "
                    "is a missing one"
                )
            return values  # type: ignore[return-value]
        if not column.dtype.is_numeric():
            raise TypeError(
                f"target must be a column of numbers or of class labels; got {label!r} of dtype {column.dtype}: convert it "
                "to numbers or text first"
            )
        if column.dtype.is_integer() and set(column.unique().to_list()) == {0, 1}:
            _log.warning(
                "target %r has the whole numbers 0 and 1 alone and is read as numbers, for a regression; if they are "
                "classes, pass categories=[%r]",
                *(label, label),
            )
    return None


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


def _with(frame: Any, wanted: Sequence[Hashable], name: str) -> nw.DataFrame[Any]:
    """`frame` as `checked_frame` returns it; a ValueError unless it has these columns."""
    frame = checked_frame(frame, name)
    missing = [column for column in wanted if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{name} must have the columns of the data set by name, {listed(wanted)}; got a frame without "
            f"{listed(missing)}"
        )
    return frame  # type: ignore[no-any-return]


def _named(names: Any, frame: nw.DataFrame[Any], argument: str) -> list[Hashable]:
    """The columns that an argument names: one name, or a list of names."""
    names, labels = list(names) if isinstance(names, list | tuple) else [names], frame.columns
    for name in names:
        if not isinstance(name, str | int | np.integer) or isinstance(name, bool):
            raise TypeError(f"{argument} must be the name of a column or a list of names; got {shown(name)}")
        if name not in labels:
            raise ValueError(
                f"{argument} must name columns of df, {listed(labels)}; got {name!r}{did_you_mean(name, map(str, labels))}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"{argument} must name every column once; got {names!r}")
    return [labels[labels.index(name)] for name in names]  # not NumPy's numbers


def _numbers_of(
    frame: nw.DataFrame[Any], labels: Sequence[Any], name: str, bools: Sequence[Hashable] | None = None
) -> Numbers:
    """Columns of numbers that float32 can hold, and of bools, as float64, ``[N, columns]``; missing values are NaN.

    Args:
        bools: the columns that must be of bools, if the others may not be.
    """
    kinds = frame.schema
    for label in labels:
        kind, is_bool = kinds[label], kinds[label] == nw.Boolean
        if not (kind.is_numeric() or is_bool):
            raise TypeError(f"{name}, column {label!r}, must be of real numbers; got dtype {kind}")
        if bools is not None and is_bool != (label in bools):
            had = "bools" if label in bools else "numbers"
            raise ValueError(f"{name}, column {label!r}, had {had} and must have {had}; got dtype {kind}")
    if not labels:
        return np.empty((len(frame), 0))
    if frame.implementation.is_pandas_like():
        table = frame.to_native()[list(labels)].to_numpy(np.float64, na_value=np.nan)
    else:
        table = frame.select(nw.col(*labels).cast(nw.Float64)).to_numpy()
    for label, column in zip(labels, table.T, strict=True):
        size = np.abs(column)
        if len(beyond := np.flatnonzero(size > np.finfo(np.float32).max)):
            raise ValueError(
                f"{name}, column {label!r}, must be finite and at most 3.4e38, what float32 holds; got "
                f"{column[beyond[0]]:g} in row {beyond[0]}"
            )
        if kinds[label].is_integer() and (size > 2**53).any():
            raise ValueError(
                f"{name}, column {label!r}, must have whole numbers of at most 2**53, which float64 holds exactly; got "
                f"{np.nanmax(size):g}: subtract the smallest, or leave the column out"
            )
    return np.array(table, order="C")


def _values_of(frame: nw.DataFrame[Any], label: Any, name: str) -> tuple[Value | None, ...]:
    """The values of a column of categories: those that its dtype declares, in their order, or those that occur, sorted."""
    column, labels = frame.get_column(label), set(_labels(frame, label, name))
    if column.dtype in (nw.Categorical, nw.Enum) and column.implementation.is_pandas_like():
        values = column.to_native().cat.categories.tolist()
    elif isinstance(column.dtype, nw.Enum):
        values = list(column.dtype.categories)
    else:
        values = sorted(labels - {None})  # type: ignore[type-var]
    odd = [value for value in values if not isinstance(value, Value)]
    if odd:
        raise TypeError(
            f"{name}, column {label!r}, must have text, numbers or bools as categories; got {odd[0]!r}: convert them to text"
        )
    return (*values, None) if None in labels else tuple(values)


def _labels(frame: nw.DataFrame[Any], label: Any, name: str) -> list[Value | None]:
    """The values of a column of text, numbers, bools or declared categories, None where they are missing."""
    column = frame.get_column(label)
    if not (_is_label(column.dtype) or column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise TypeError(
            f"{name}, column {label!r}, must have text, numbers or bools as categories; got dtype {column.dtype}: convert "
            "them to text, .astype(str)"
        )
    return [None if value != value else value for value in column.to_list()]


def _coded(
    frame: nw.DataFrame[Any], label: Any, values: Sequence[Value | None], name: str, fill: Value | None = None
) -> Tensor:
    """A column of categories as indices into its values, int64 ``[N]``; missing ones are `fill`."""
    known = {value: place for place, value in enumerate(values)}
    labels = [fill if value is None else value for value in _labels(frame, label, name)]
    unseen = [value for value in dict.fromkeys(labels) if value not in known]
    if unseen:
        rows = sum(value not in known for value in labels)
        raise ValueError(
            f"{name}, column {label!r}, must have the categories of the data set, {listed(values)}; got {listed(unseen)} in "
            f"{rows} rows: declare all categories before training, by pandas.Categorical or polars.Enum"
        )
    return torch.tensor([known[value] for value in labels])


def _is_label(kind: nw.dtypes.DType) -> bool:
    """Whether the values of a column are text or declared categories."""
    return kind in (nw.String, nw.Categorical, nw.Enum)


def listed(values: Iterable[Any]) -> str:
    """A few of the values for a message."""
    values = list(values)
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(map(repr, values[:_SHOWN])) + more
