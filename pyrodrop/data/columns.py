"""How the columns of a data frame become inputs and observations: numbers, categories, standardisation.

    one-hot    x = [numbers | one column of 0 and 1 per value of each category]      [N, D]
    codes      x = (numbers, codes)      [N, D] and [N, K], codes whole numbers from 0, for nn.Embedding

Columns keep the order of the frame, numbers first, as in ``pandas.get_dummies``, and are found by name in other frames.
Recipes and estimators read frames by further rules: text is a category, and gaps are filled:

    numbers     by their median, bools by their more frequent value; if they have gaps, x also has a column of 0 and 1
    categories  by a category of their own if they have gaps, otherwise by their most frequent value

Frames of pandas, polars and pyarrow are read by narwhals, https://narwhals-dev.github.io/narwhals.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.arrays import as_table
from pyrodrop.checks import Flag, checked, did_you_mean, one_of, shown
from pyrodrop.scaling import ROUNDING, Standardize, varies, within

Encode = Literal["one-hot", "codes"]
Value = str | int | float | bool
_DATES = (nw.Datetime, nw.Date, nw.Duration, nw.Time)
_MOST_VALUES = 20  # of text, unless these are at most half as many as rows

_log = logging.getLogger("pyrodrop")
_ROUNDING = 1e-3  # the most that float64 may change the values of a column by, relative to their range
_SHOWN = 5  # names and values in a message


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
        fills: the value that replaces missing ones, for every column of x; a category of None is that of missing values. If
            empty, missing values are an error.
        gaps: names of the numbers and indicators that have a column of x which is 1 where they are missing.
    """

    numbers: tuple[Hashable, ...]
    indicators: tuple[Hashable, ...]
    categories: Mapping[Hashable, tuple[Value | None, ...]]
    targets: tuple[Hashable, ...]
    classes: tuple[Value, ...] | None = None
    encode: Encode = "one-hot"
    scaled: Standardize | None = None
    ordered: bool = False
    wide: tuple[Hashable, ...] = ()
    fills: Mapping[Hashable, Value | None] = field(default_factory=dict)
    gaps: tuple[Hashable, ...] = ()

    def dtype(self, names: Sequence[Hashable]) -> torch.dtype:
        """The dtype of a table of these columns."""
        return torch.float64 if set(names) & set(self.wide) else torch.float32

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of x, such as ``age`` and ``kind=a``; those of codes are ``kind``."""
        plain = [
            *(str(name) for name in (*self.numbers, *self.indicators)),
            *(f"{name} is missing" for name in self.gaps),
        ]
        if self.encode == "codes":
            return (*plain, *(str(name) for name in self.categories))
        return (*plain, *(
            f"{name} is missing" if value is None else f"{name}={value}"
            for name, values in self.categories.items()
            for value in values
        ))  # fmt: skip

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
        if not self.fills:
            _check_no_missing(frame, (*self.numbers, *self.indicators, *self.categories), name)
        _check_no_bools(frame, self.numbers, name)
        numbers = _numbers_of(frame, (*self.numbers, *self.indicators), name)
        for place, column in enumerate(self.indicators, len(self.numbers)):
            odd = numbers[:, place][~np.isin(numbers[:, place], (0, 1)) & ~np.isnan(numbers[:, place])]
            if len(odd):
                raise ValueError(
                    f"{name}, column {column!r}, had bools and must have bools, or 0 and 1; got {odd[0]:g} in {len(odd)} "
                    "rows"
                )
        plain = self.table(numbers)
        codes = [
            _coded(frame, column, values, name, self.fills.get(column)) for column, values in self.categories.items()
        ]
        if self.encode == "codes":
            whole = torch.stack(codes, 1)
            if not plain.shape[1]:
                return whole
            return (plain if self.scaled is None else self.scaled(plain).float()), whole
        sizes = map(len, self.categories.values())
        return torch.cat([plain, *(F.one_hot(code, size) for code, size in zip(codes, sizes, strict=True))], 1)

    def table(self, numbers: np.ndarray[Any, Any]) -> Tensor:
        """Numbers and indicators ``[N, columns]`` with their gaps (NaN) filled, and the columns of `gaps`."""
        names = (*self.numbers, *self.indicators)
        missing = np.isnan(numbers)
        filled = np.where(missing, np.array([self.fills.get(name, np.nan) for name in names], np.float64), numbers)
        gaps = missing[:, [names.index(name) for name in self.gaps]]
        return torch.from_numpy(np.concatenate([filled, gaps], 1)).to(self.dtype(names))

    def y(self, frame: Any, name: str = "df") -> Tensor:
        """The observations of a frame: ``[N, targets]``, NaN where missing, or class labels ``[N]``. Raises as `x`."""
        frame = checked_frame(frame, name)
        self._check_present(frame, self.targets, name)
        if self.classes is not None:
            _check_no_missing(frame, self.targets, name)
            return _coded(frame, self.targets[0], self.classes, name)
        _check_no_bools(frame, self.targets, name)
        return torch.from_numpy(_numbers_of(frame, self.targets, name)).to(self.dtype(self.targets))

    def words(self) -> dict[str, Any]:
        """All attributes as plain lists, numbers and strings, for a file."""
        scaled = None if self.scaled is None else [self.scaled.loc.tolist(), self.scaled.scale.tolist()]
        return {
            "numbers": list(self.numbers), "indicators": list(self.indicators),
            "categories": [[name, list(values)] for name, values in self.categories.items()],
            "targets": list(self.targets), "classes": None if self.classes is None else list(self.classes),
            "encode": self.encode, "scaled": scaled, "ordered": self.ordered, "wide": list(self.wide),
            "fills": [list(pair) for pair in self.fills.items()], "gaps": list(self.gaps),
        }  # fmt: skip

    @classmethod
    def of_words(cls, stored: Any, file: str) -> Columns:
        """The inverse of `words`; a ValueError that names `file` if `stored` is damaged."""
        try:
            names = [tuple(stored.get(key, ())) for key in ("numbers", "indicators", "targets", "wide", "gaps")]
            if not all(isinstance(name, str | int) for key in names for name in key):
                raise TypeError("a name is no str")
            categories = {name: tuple(values) for name, values in stored["categories"]}
            fills = {name: value for name, value in stored.get("fills", ())}  # noqa: C416
            classes = None if stored["classes"] is None else tuple(stored["classes"])
            dtype = torch.float64 if {*names[0]} & {*names[3]} else torch.float32
            numbers = (
                [] if stored["scaled"] is None else [torch.tensor(value, dtype=dtype) for value in stored["scaled"]]
            )
            scaled = Standardize(*numbers) if numbers else None
            encode, ordered = one_of(stored["encode"], Encode, "encode"), stored.get("ordered") is True
        except (AttributeError, TypeError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"{file} is damaged: it must say which columns of a frame it is of; got {error}") from None
        return cls(
            names[0], names[1], categories, names[2], classes, encode, scaled, ordered, names[3], fills, names[4]
        )

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


@checked
def read_frame(
    df: Any,
    target: Any,
    categories: Any,
    encode: Encode,
    standardise: Annotated[bool, Flag("whether to standardise the columns of numbers")],
    rows: Any = None,
    *,
    fill: bool = False,
    name: str = "df",
) -> tuple[Columns, Standardize | None, Standardize | None]:
    """The columns of a frame, and the standardisations of x and y. Arguments and errors are those of `Dataset.from_frame`.

    Args:
        rows: indices of the rows from which the standardisation is computed; all if None.
        fill: whether text is taken for categories, and gaps in x are filled. `target` may be empty, ().
        name: of the frame, for messages.
    """
    df = checked_frame(df, name)
    kinds = df.schema
    targets, of_categories = _named(target, df, "target"), _named(categories, df, "categories")
    inputs = [label for label in df.columns if label not in targets]
    if not (targets or fill) or not inputs:
        raise ValueError(
            f"target must name at least one column, and leave one as input; got {listed(targets) or 'none'}"
        )
    if not fill:
        _check_no_missing(df, inputs, name)
    classes = _classes_of(df, targets, of_categories)
    _check_no_dates(df, inputs, name)
    if fill:
        texts = [label for label in inputs if _is_label(df.get_column(label)) and kinds[label] != nw.Boolean]
        _check_few_values(df, [label for label in texts if label not in of_categories], name)
        of_categories = [*of_categories, *texts]
    plain = [label for label in inputs if label not in of_categories]
    check_numbers(df, plain, name, " that is not named in categories", "name it in categories=[{}]")
    columns = Columns(
        numbers=tuple(label for label in plain if kinds[label] != nw.Boolean),
        indicators=tuple(label for label in plain if kinds[label] == nw.Boolean),
        categories={label: _values_of(df, label) for label in inputs if label in of_categories},
        targets=tuple(targets),
        classes=classes,
        encode=encode,
        ordered=bool(targets) and kinds[targets[0]] == nw.Enum,
    )
    if encode == "codes" and not columns.categories:
        raise ValueError("encode='codes' needs at least one input named in categories; got none")
    of_numbers = targets if classes is None else []
    _check_whole(df, (*columns.numbers, *of_numbers), name)
    seen = slice(None) if rows is None else rows
    if fill:
        columns = _filling(columns, _numbers_of(df, (*columns.numbers, *columns.indicators), name)[seen])
        columns = replace(columns, fills={**columns.fills, **{c: _fill_of(df, c, columns) for c in columns.categories}})
    y = torch.from_numpy(_numbers_of(df, of_numbers, name)[seen])
    columns, of_x = scaled_numbers(columns, _numbers_of(df, columns.numbers, name)[seen])
    narrow = within(y, torch.float32, ROUNDING).tolist()
    wide = (label for label, held in zip(of_numbers, narrow, strict=True) if not held)
    columns = replace(columns, wide=(*columns.wide, *wide))
    changes = varies(y, columns.dtype(targets)).tolist()
    if not all(changes):
        where, constant = "all" if rows is None else "all training", changes.index(False)
        raise ValueError(
            f"target must vary, or there is nothing to learn; got {float(y[:, constant].sort().values[0]):g} in "
            f"{where} {len(y)} rows of {targets[constant]!r}"
        )
    if not standardise:
        return columns, None, None
    of_y = Standardize.of(y, columns.dtype(targets)).to(columns.dtype(targets)) if of_numbers else None
    return (replace(columns, scaled=of_x), None, of_y) if encode == "codes" else (columns, of_x, of_y)


def read_array(x: np.ndarray[Any, Any]) -> tuple[Columns, Standardize]:
    """The columns of an array of numbers ``[N, D]``, some of them NaN, by the rules of frames, and their standardisation."""
    columns, of_x = scaled_numbers(_filling(Columns(tuple(range(x.shape[1])), (), {}, ()), x), x)
    assert of_x is not None
    return columns, of_x


def _filling(columns: Columns, table: np.ndarray[Any, Any]) -> Columns:
    """Columns that fill gaps of numbers and indicators ``[N, columns]``."""
    missing = np.isnan(table)
    middles = np.nanmedian(np.where(missing.all(0), 0.0, table), 0) if table.shape[1] else np.empty(0)
    middles[len(columns.numbers) :] = np.floor(middles[len(columns.numbers) :])  # of as many ones as zeros
    names = (*columns.numbers, *columns.indicators)
    gaps = tuple(name for name, gap in zip(names, missing.any(0), strict=True) if gap)
    return replace(columns, fills=dict(zip(names, middles.tolist(), strict=True)), gaps=gaps)


def _fill_of(frame: nw.DataFrame[Any], label: Hashable, columns: Columns) -> Value | None:
    """The category of missing values: None if it is one, otherwise the most frequent one."""
    counts = Counter(_labels(frame, label, ""))
    return None if None in counts else max(columns.categories[label], key=counts.__getitem__)


def scaled_numbers(columns: Columns, numbers: np.ndarray[Any, Any]) -> tuple[Columns, Standardize | None]:
    """The columns with the names of those that float32 would round too much, and the standardisation of their x."""
    fills = [columns.fills.get(name, np.nan) for name in columns.numbers]
    x = torch.from_numpy(np.where(np.isnan(numbers), np.array(fills, np.float64), numbers))
    narrow = within(x, torch.float32, ROUNDING).tolist()
    columns = replace(columns, wide=tuple(name for name, held in zip(columns.numbers, narrow, strict=True) if not held))
    further = 0 if columns.encode == "codes" else sum(map(len, columns.categories.values()))
    others = len(columns.indicators) + len(columns.gaps) + further
    return columns, _of_numbers(x, others, columns.dtype(columns.numbers))


def _of_numbers(x: Tensor, others: int, dtype: torch.dtype) -> Standardize | None:
    """The standardisation of the columns of numbers, computed in float64, followed by `others`, which stay as they are."""
    if not x.shape[1]:
        return None
    of = Standardize.of_inputs(x, dtype)
    loc, scale = torch.cat([of.loc, of.loc.new_zeros(others)]), torch.cat([of.scale, of.scale.new_ones(others)])
    return Standardize(loc.to(dtype), scale.to(dtype))


def _classes_of(
    frame: nw.DataFrame[Any], targets: Sequence[Any], categories: Sequence[Hashable]
) -> tuple[Value, ...] | None:
    """The class labels of y if it is text, categories or bools, or named in `categories`; None if y are numbers."""
    columns = [frame.get_column(label) for label in targets]
    labelled = [
        label for label, column in zip(targets, columns, strict=True) if label in categories or _is_label(column)
    ]
    if labelled:
        if len(targets) > 1:
            raise ValueError(
                f"target must be one column if it has class labels, or columns of numbers; got {listed(targets)}, of which "
                f"{labelled[0]!r} has labels"
            )
        _check_no_missing(frame, labelled, "df")
        values = _values_of(frame, labelled[0])
        if len(values) < 2:
            raise ValueError(
                f"target must have at least two classes: there is nothing to learn; got only {listed(values)}"
            )
        return tuple(value for value in values if value is not None)
    for label, column in zip(targets, columns, strict=True):
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


def _check_no_missing(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> None:
    """Raise a ValueError that names the columns with missing values, the number of rows with any, and the first such row."""
    kinds = frame.schema
    plain = [label for label in labels if _is_number(kinds[label])]  # type: ignore[index]
    others = [label for label in labels if label not in plain]
    masks = [np.isnan(_as_float64(frame, plain)).T, *(frame.get_column(n).is_null().to_numpy()[None] for n in others)]  # type: ignore[arg-type]
    missing = dict(zip((*plain, *others), np.concatenate(masks), strict=True))
    wrong = [f"{label!r} in {missing[label].sum()} rows" for label in labels if missing[label].any()]
    if wrong:
        rows = np.any(list(missing.values()), axis=0)
        raise ValueError(
            f"{name} must have a value in every row; got missing values in {rows.sum()} of {len(rows)} rows, of column "
            f"{listed(wrong, str)}, first in row {rows.argmax()}: drop the rows, fill the values, or leave the column out"
        )


def _check_no_dates(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> None:
    """Raise a TypeError that names the columns of dates and times."""
    kinds = frame.schema
    dates = [f"{label!r} of dtype {kinds[label]}" for label in labels if kinds[label] in _DATES]  # type: ignore[index, operator]
    if dates:
        raise TypeError(
            f"{name} must have numbers or categories, not dates; got column {listed(dates, str)}: replace a date by what "
            "matters of it, such as the days since the first, (date - date.min()).dt.total_seconds() / 86400, or "
            "date.dt.month, or leave the column out; dates as the index of a pandas frame say that its rows have an order"
        )


def _check_few_values(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> None:
    """Raise a ValueError for text with too many values for categories, such as names."""
    for label in labels:
        column = frame.get_column(label)  # type: ignore[arg-type]
        values = column.n_unique()
        if column.dtype == nw.String and values > max(_MOST_VALUES, len(frame) // 2):
            raise ValueError(
                f"{name}, column {label!r}, must have text whose values repeat, to be categories; got {values} values in "
                f"{len(frame)} rows: leave the column out, or replace it by what matters of it"
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
    odd = [label for label in labels if not _is_number(kinds[label])]  # type: ignore[index]
    if odd:
        described = [f"{label!r} of dtype {kinds[label]}" for label in odd]  # type: ignore[index]
        raise TypeError(
            f"{name} must have numbers in every column{others}; got column {listed(described, str)}: "
            f"{remedy.format(listed(odd))}, make numbers of text and times, by pandas.to_numeric(column) or, in polars, "
            "column.cast(float), or leave the column out"
        )


def _numbers_of(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> np.ndarray[Any, Any]:
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


def _check_whole(frame: nw.DataFrame[Any], labels: Sequence[Hashable], name: str) -> None:
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


def _values_of(frame: nw.DataFrame[Any], label: Hashable) -> tuple[Value | None, ...]:
    """The values of a column of categories: those that its dtype declares, in their order, or those that occur, sorted."""
    column = _categories(frame, label, "df")
    if column.dtype in (nw.Categorical, nw.Enum) and column.implementation.is_pandas_like():
        values = column.to_native().cat.categories.tolist()
    elif isinstance(column.dtype, nw.Enum):
        values = list(column.dtype.categories)
    else:
        values = sorted({value for value in _labels(frame, label, "df") if value is not None})
    odd = [value for value in values if not isinstance(value, Value)]
    if odd:
        raise TypeError(
            f"df, column {label!r}, must have text, numbers or bools as categories; got {odd[0]!r}: convert them to text, "
            ".astype(str)"
        )
    gaps = (None,) if None in _labels(frame, label, "df") else ()
    return (*values, *gaps)


def _labels(frame: nw.DataFrame[Any], label: Hashable, name: str) -> list[Value | None]:
    """The values of a column of categories, None where they are missing."""
    return [None if value != value else value for value in _categories(frame, label, name).to_list()]


def _coded(
    frame: nw.DataFrame[Any], label: Hashable, values: Sequence[Value | None], name: str, fill: Value | None = None
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


def _is_label(column: nw.Series[Any]) -> bool:
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
    if not (_is_label(column) or column.dtype.is_integer() or column.dtype.is_float()):
        raise TypeError(
            f"{name}, column {label!r}, must have text, numbers or bools as categories; got dtype {column.dtype}: convert "
            "them to text, .astype(str)"
        )
    return column


def _is_number(kind: nw.dtypes.DType) -> bool:
    return kind.is_numeric() or kind == nw.Boolean


def _as_float64(frame: nw.DataFrame[Any], labels: Sequence[Hashable]) -> np.ndarray[Any, Any]:
    """Columns of numbers and bools, converted together, ``[N, columns]``; missing values are NaN."""
    if not labels:
        return np.empty((len(frame), 0))
    if frame.implementation.is_pandas_like():
        table = frame.to_native()[list(labels)].to_numpy(np.float64, na_value=np.nan)
    else:
        table = frame.select(nw.col(*labels).cast(nw.Float64)).to_numpy()  # type: ignore[arg-type]
    return np.array(table, order="C")
