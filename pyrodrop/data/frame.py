"""The columns of a data frame as inputs and observations: which are numbers, which are categories, what is standardised.

    one-hot    x = [numbers | one column of 0 and 1 per value of each category]      [N, D]
    codes      x = (numbers, codes)      [N, D] and [N, K], codes whole numbers from 0, for nn.Embedding

Columns keep the order of the frame, numbers first, as in ``pandas.get_dummies``, and are found by name in other frames.
pandas is not imported: its tables are known by their methods.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.arrays import is_frame
from pyrodrop.names import one_of
from pyrodrop.scaling import Standardize, varies

Encode = Literal["one-hot", "codes"]
Value = str | int | float | bool

_ROUNDING = 1e-3  # of a column's standard deviation, what float32 may change its values by
_SHOWN = 5  # names and values in a message


@dataclass(frozen=True, eq=False)
class Columns:
    """How the columns of a frame become x and y; `Dataset.from_frame` makes it and `Dataset.columns` has it.

    Attributes:
        numbers: names of the columns of numbers.
        indicators: names of the columns of bools, which are inputs 0 and 1.
        categories: the values of every column of categories, in the order of its codes.
        targets: names of the columns of y.
        classes: the values of y in the order of the class labels; None if y are numbers.
        encode: ``one-hot`` or ``codes``.
        scaled: standardisation of the numbers and indicators that is part of `x`, because ``codes`` have two inputs; None if
            it is the data set's.
    """

    numbers: tuple[Hashable, ...]
    indicators: tuple[Hashable, ...]
    categories: Mapping[Hashable, tuple[Value, ...]]
    targets: tuple[Hashable, ...]
    classes: tuple[Value, ...] | None = None
    encode: Encode = "one-hot"
    scaled: Standardize | None = None

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
            frame: a pandas DataFrame with the columns of the inputs.
            name: of the argument, for messages.

        Returns:
            x as in the `Dataset`: ``[N, D]``, or a pair ``[N, D]``, ``[N, K]``.

        Raises:
            TypeError: `frame` is no DataFrame, or a column that had numbers has none.
            ValueError: a column is missing, or occurs twice; values are missing, infinite, or categories that the first
                frame did not have.
        """
        frame = checked_frame(frame, name)
        self._check_present(frame, (*self.numbers, *self.indicators, *self.categories), name)
        check_no_missing(frame, (*self.numbers, *self.indicators, *self.categories), name)
        numbers = numbers_of(frame, (*self.numbers, *self.indicators), name)
        for place, column in enumerate(self.indicators, len(self.numbers)):
            odd = numbers[:, place][~np.isin(numbers[:, place], (0, 1))]
            if len(odd):
                raise ValueError(
                    f"{name}, column {column!r}, had bools and must have bools, or 0 and 1; got {odd[0]:g} in {len(odd)} "
                    "rows"
                )
        plain = in_float32(numbers, (*self.numbers, *self.indicators), name)
        codes = [coded(frame, column, values, name) for column, values in self.categories.items()]
        if self.encode == "codes":
            whole = torch.from_numpy(np.stack(codes, 1))
            if not plain.shape[1]:
                return whole
            return (plain if self.scaled is None else self.scaled(plain)), whole
        hot = [np.eye(len(v), dtype=np.float32)[c] for c, v in zip(codes, self.categories.values(), strict=True)]
        return torch.cat([plain, *map(torch.from_numpy, hot)], 1)

    def y(self, frame: Any, name: str = "df") -> Tensor:
        """The observations of a frame: ``[N, targets]``, or class labels ``[N]``. Raises as `x`."""
        frame = checked_frame(frame, name)
        self._check_present(frame, self.targets, name)
        check_no_missing(frame, self.targets, name)
        if self.classes is not None:
            return torch.from_numpy(coded(frame, self.targets[0], self.classes, name))
        return in_float32(numbers_of(frame, self.targets, name), self.targets, name)

    def words(self) -> dict[str, Any]:
        """All of it in plain lists, numbers and words, for a file."""
        scaled = None if self.scaled is None else [self.scaled.loc.tolist(), self.scaled.scale.tolist()]
        return {
            "numbers": list(self.numbers), "indicators": list(self.indicators),
            "categories": [[name, list(values)] for name, values in self.categories.items()],
            "targets": list(self.targets), "classes": None if self.classes is None else list(self.classes),
            "encode": self.encode, "scaled": scaled,
        }  # fmt: skip

    @classmethod
    def of_words(cls, words: Any, file: str) -> Columns:
        """The columns that `words` are of; a ValueError that names the file if it is damaged."""
        try:
            names = [tuple(words[part]) for part in ("numbers", "indicators", "targets")]
            if not all(isinstance(name, str | int) for part in names for name in part):
                raise TypeError("a name is no str")
            categories = {name: tuple(values) for name, values in words["categories"]}
            classes = None if words["classes"] is None else tuple(words["classes"])
            scaled = None if words["scaled"] is None else Standardize(*map(torch.tensor, words["scaled"]))
            encode = one_of(words["encode"], Encode, "encode")
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"{file} is damaged: it must say which columns of a frame it is of; got {error}") from None
        return cls(names[0], names[1], categories, names[2], classes, encode, scaled)

    def _check_present(self, frame: Any, wanted: Sequence[Hashable], name: str) -> None:
        missing = [column for column in wanted if column not in list(frame.columns)]
        if missing:
            raise ValueError(
                f"{name} must have the columns of the data set by name, {listed(wanted)}; got a frame without "
                f"{listed(missing)}"
            )


@dataclass(frozen=True)
class Read:
    """A frame that was read: its columns, x, y and their standardisations."""

    columns: Columns
    x: Any
    y: Tensor
    inputs: Standardize | None
    targets: Standardize | None


def read_frame(df: Any, target: Any, categories: Any, encode: Encode, standardise: Any, rows: Any = None) -> Read:
    """Read a frame; arguments and errors are those of `Dataset.from_frame`.

    Args:
        rows: places of the rows that the standardisation is computed from; all if None.
    """
    one_of(encode, Encode, "encode")
    df = checked_frame(df, "df")
    labels = list(df.columns)
    targets = named(target, labels, "target")
    if not targets:
        raise ValueError("target must be the name of at least one column; got an empty list")
    named_categories = named(categories, labels, "categories")
    if not isinstance(standardise, bool):
        standardise = named(standardise, labels, "standardise")
    inputs = [label for label in labels if label not in targets]
    if not inputs:
        raise ValueError(f"df must have a column beside the target; got only {listed(targets)}")
    check_no_missing(df, labels, "df")
    classes = classes_of(df, targets, named_categories)
    kinds = {label: df[label].dtype for label in inputs if label not in named_categories}
    check_numbers(kinds)
    columns = Columns(
        numbers=tuple(label for label, dtype in kinds.items() if dtype.kind != "b"),
        indicators=tuple(label for label, dtype in kinds.items() if dtype.kind == "b"),
        categories={label: values_of(df, label) for label in inputs if label in named_categories},
        targets=tuple(targets),
        classes=classes,
        encode=encode,
    )
    if encode == "codes" and not columns.categories:
        raise ValueError("encode='codes' needs at least one input named in categories; got none")
    chosen = _chosen(standardise, columns)
    x, y = columns.x(df), columns.y(df)
    seen = df if rows is None else df.iloc[rows]
    plain = (*columns.numbers, *columns.indicators)
    own_x, own_y = numbers_of(seen, plain, "df"), None if classes is not None else numbers_of(seen, targets, "df")
    check_rounding(own_x, plain, "df")
    of_y = None
    if own_y is not None:
        moving = varies(torch.from_numpy(own_y), torch.float32).tolist()
        flat = [label for label, moves in zip(targets, moving, strict=True) if not moves]
        if flat:
            where = "all" if rows is None else "all training"
            raise ValueError(
                f"target must vary, or there is nothing to learn; got {own_y[0, targets.index(flat[0])]:g} in {where} "
                f"{len(own_y)} rows of {flat[0]!r}"
            )
        check_rounding(own_y, targets, "df")
        of_y = _standardisation(own_y, targets, chosen)
    if encode == "codes":
        columns = replace(columns, scaled=_standardisation(own_x, plain, chosen))
        return Read(columns, columns.x(df), y, None, of_y)
    return Read(columns, x, y, _standardisation(own_x, plain, chosen, sum(map(len, columns.categories.values()))), of_y)


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
    if isinstance(given, str) or (isinstance(given, int) and not isinstance(given, bool)):
        given = [given]
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


def check_numbers(kinds: Mapping[Hashable, Any]) -> None:
    """Raise a TypeError that names the columns that are no numbers and are not named as categories."""
    odd = {label: dtype for label, dtype in kinds.items() if getattr(dtype, "kind", "O") not in "biuf"}
    if not odd:
        return
    times = [label for label, dtype in odd.items() if getattr(dtype, "kind", "O") in "mM"]
    words = [label for label in odd if label not in times]
    hints = []
    if words:
        hints.append(f"name it in categories=[{', '.join(map(repr, words[:_SHOWN]))}]")
    if times:
        hints.append(
            f"convert times to numbers, such as days since the first, (t - t.min()).dt.days with t = df[{times[0]!r}]"
        )
    told = [f"{label!r} of dtype {dtype}" for label, dtype in odd.items()]
    raise TypeError(
        f"df must have numbers in every column that is not named in categories; got column {listed(told, str)}: "
        f"{', '.join(hints)}, or leave it out (df.drop(columns=...))"
    )


def numbers_of(frame: Any, labels: Sequence[Hashable], name: str) -> np.ndarray[Any, Any]:
    """Columns of finite numbers without missing values as float64, ``[N, columns]``."""
    found = np.empty((len(frame), len(labels)))
    for place, label in enumerate(labels):
        column = frame[label]
        if getattr(column.dtype, "kind", "O") not in "biuf":
            raise TypeError(f"{name}, column {label!r}, must be of real numbers; got dtype {column.dtype}")
        found[:, place] = column.to_numpy(dtype=np.float64)
        wrong = int((~np.isfinite(found[:, place])).sum())
        if wrong:
            raise ValueError(f"{name}, column {label!r}, must be finite; got infinite values in {wrong} rows")
    return found


def in_float32(values: np.ndarray[Any, Any], labels: Sequence[Hashable], name: str) -> Tensor:
    """The values in float32; a ValueError for those that are too large for it."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    for place, label in enumerate(labels):
        if not np.isfinite(rounded[:, place]).all():
            largest = np.abs(values[:, place]).max()
            raise ValueError(
                f"{name}, column {label!r}, must be at most 3.4e38, what float32 holds; got {largest:g}: divide it by a "
                "constant"
            )
    return torch.from_numpy(rounded)


def check_rounding(values: np.ndarray[Any, Any], labels: Sequence[Hashable], name: str) -> None:
    """Raise a ValueError for a column whose variation is rounded away in float32, such as seconds since 1970."""
    changed = np.abs(values.astype(np.float32).astype(np.float64) - values).max(0)
    lost = (changed > _ROUNDING * values.std(0)) & varies(torch.from_numpy(values)).numpy()
    for place in np.flatnonzero(lost).tolist():
        column = values[:, place]
        raise ValueError(
            f"{name}, column {labels[place]!r}, must vary by more than float32 rounds its values; got values from "
            f"{column.min():.12g} to {column.max():.12g}: subtract the smallest"
        )


def values_of(frame: Any, label: Hashable) -> tuple[Value, ...]:
    """The values of a column of categories: those that its dtype declares, in their order; otherwise sorted."""
    column = frame[label]
    declared = hasattr(column, "cat")
    values = [_plain(value, label) for value in (column.cat.categories if declared else column.unique())]
    if len({isinstance(value, str) for value in values}) > 1:
        raise TypeError(
            f"df, column {label!r}, must have categories of one kind, text or numbers; got both: convert them with "
            ".astype(str)"
        )
    return tuple(values if declared else sorted(values))


def classes_of(frame: Any, targets: Sequence[Hashable], categories: Sequence[Hashable]) -> tuple[Value, ...] | None:
    """The class labels of y, where it is no number: text, categories or bools, or a target named in categories."""
    dtypes = {label: frame[label].dtype for label in targets}
    labels = [label for label in targets if label in categories or getattr(dtypes[label], "kind", "O") not in "iufmMc"]
    wrong = [label for label in targets if getattr(dtypes[label], "kind", "O") in "mMc" and label not in categories]
    if wrong:
        raise TypeError(
            f"target must be a column of numbers or of class labels; got {wrong[0]!r} of dtype {dtypes[wrong[0]]}: convert "
            "it to numbers first"
        )
    if not labels:
        return None
    if len(targets) > 1:
        raise ValueError(
            f"target must be one column if it has class labels, or columns of numbers; got {listed(targets)}, of which "
            f"{labels[0]!r} has labels, dtype {dtypes[labels[0]]}"
        )
    values = values_of(frame, labels[0])
    if len(values) < 2:
        raise ValueError(f"target must have at least two classes: there is nothing to learn; got only {listed(values)}")
    return values


def coded(frame: Any, label: Hashable, values: Sequence[Value], name: str) -> np.ndarray[Any, Any]:
    """A column of categories as the places of its values, int64 ``[N]``."""
    column = frame[label]
    known = {value: place for place, value in enumerate(values)}
    given = [_plain(value, label) for value in column.unique()]
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


def _plain(value: Any, label: Hashable) -> Value:
    """A category as Python's own str, bool or number."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, str | int | float | bool):
        raise TypeError(
            f"df, column {label!r}, must have text, whole numbers or bools as categories; got a {type(value).__name__}: "
            "convert them with .astype(str)"
        )
    return value


def _chosen(standardise: bool | list[Hashable], columns: Columns) -> set[Hashable]:
    """Names of the columns to standardise. Indicators and categories are not, see `Dataset.from_frame`."""
    numbers = {*columns.numbers, *(() if columns.classes is not None else columns.targets)}
    if isinstance(standardise, bool):
        return numbers if standardise else set()
    odd = [label for label in standardise if label not in numbers]
    if odd:
        raise ValueError(
            f"standardise must be True, False or names of columns of numbers, {listed(sorted(numbers, key=str))}; got "
            f"{odd[0]!r}"
        )
    return set(standardise)


def _standardisation(
    values: np.ndarray[Any, Any], labels: Sequence[Hashable], chosen: set[Hashable], further: int = 0
) -> Standardize | None:
    """That of the chosen columns, computed in float64; the others and `further` ones are left as they are."""
    if not chosen & set(labels):
        return None
    own = Standardize.of(torch.from_numpy(values), torch.float32)
    kept = torch.tensor([label in chosen for label in labels])
    loc = torch.where(kept, own.loc, torch.zeros_like(own.loc))
    scale = torch.where(kept, own.scale, torch.ones_like(own.scale))
    return Standardize(
        torch.cat([loc, loc.new_zeros(further)]).float(), torch.cat([scale, scale.new_ones(further)]).float()
    )
