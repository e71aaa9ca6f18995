"""Convert a data frame to a data set: which columns are x and y, and which are standardised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
from torch import Tensor

from pyrodrop.constraints import checked
from pyrodrop.data.column_values import (
    Value,
    check_no_missing,
    check_numbers,
    check_whole,
    checked_frame,
    is_label,
    listed,
    named,
    numbers_of,
    values_of,
)
from pyrodrop.data.columns import Columns, Encode
from pyrodrop.scaling import ROUNDING, Standardize, varies, within

_log = logging.getLogger("pyrodrop")


@checked
def read_frame(
    df: Any, target: Any, categories: Any, encode: Encode, standardise: Any, rows: Any = None
) -> tuple[Columns, Standardize | None, Standardize | None]:
    """The columns of a frame, and the standardisations of x and y. Arguments and errors are those of `Dataset.from_frame`.

    Args:
        rows: indices of the rows from which the standardisation is computed; all if None.
    """
    df = checked_frame(df, "df")
    labels = df.columns
    targets = named(target, labels, "target")
    if not targets:
        raise ValueError("target must be the name of at least one column; got an empty list")
    named_categories = named(categories, labels, "categories")
    if not isinstance(standardise, bool):
        standardise = named(standardise, labels, "standardise")
    inputs = [label for label in labels if label not in targets]
    if not inputs:
        raise ValueError(f"df must have a column beside the target; got only {listed(targets)}")
    check_no_missing(df, inputs, "df")
    classes = classes_of(df, targets, named_categories)
    if classes is None:
        _warn_of_binary_numbers(df, targets)
    plain_inputs = [label for label in inputs if label not in named_categories]
    check_numbers(df, plain_inputs, "df", " that is not named in categories", "name it in categories=[{}]")
    kinds = df.schema
    bools = {label for label in plain_inputs if kinds[label] == nw.Boolean}
    columns = Columns(
        numbers=tuple(label for label in plain_inputs if label not in bools),
        indicators=tuple(label for label in plain_inputs if label in bools),
        categories={label: values_of(df, label) for label in inputs if label in named_categories},
        targets=tuple(targets),
        classes=classes,
        encode=encode,
        ordered=kinds[targets[0]] == nw.Enum,
    )
    if encode == "codes" and not columns.categories:
        raise ValueError("encode='codes' needs at least one input named in categories; got none")
    chosen = _chosen(standardise, columns)
    check_whole(df, (*columns.numbers, *(targets if classes is None else ())), "df")
    plain = (*columns.numbers, *columns.indicators)
    seen = slice(None) if rows is None else rows
    x = numbers_of(df, plain, "df")[seen]
    y = None if classes is not None else numbers_of(df, targets, "df")[seen]
    columns = replace(columns, wide=(*_wide(x, plain), *(() if y is None else _wide(y, targets))))
    of_y = None
    if y is not None:
        dtype = columns.dtype(targets)
        changes = varies(torch.from_numpy(y), dtype).tolist()
        constant = [place for place, varying in enumerate(changes) if not varying]
        if constant:
            where = "all" if rows is None else "all training"
            raise ValueError(
                f"target must vary, or there is nothing to learn; got {np.sort(y[:, constant[0]])[0]:g} in {where} {len(y)} "
                f"rows of {targets[constant[0]]!r}"
            )
        of_y = _standardisation(Standardize.of, y, targets, chosen, dtype)
    further = 0 if encode == "codes" else sum(map(len, columns.categories.values()))
    of_x = _standardisation(Standardize.of_inputs, x, plain, chosen, columns.dtype(plain), further)
    return (replace(columns, scaled=of_x), None, of_y) if encode == "codes" else (columns, of_x, of_y)


def _wide(values: np.ndarray[Any, Any], labels: Sequence[Hashable]) -> Iterator[Hashable]:
    """The names of the columns whose values float32 would change by too much (`pyrodrop.scaling.narrowed`)."""
    kept = within(torch.from_numpy(values), torch.float32, ROUNDING).tolist()
    return (label for label, narrow in zip(labels, kept, strict=True) if not narrow)


def _warn_of_binary_numbers(frame: nw.DataFrame[Any], targets: Sequence[Any]) -> None:
    """Warn that whole numbers 0 and 1 are read as numbers, which classifiers elsewhere take as labels."""
    for label in targets:
        column = frame.get_column(label)
        if column.dtype.is_integer() and set(column.unique().to_list()) == {0, 1}:
            _log.warning(
                "target %r has the whole numbers 0 and 1 alone and is read as numbers, for a regression; if they are "
                "classes, pass categories=[%r]",
                *(label, label),
            )


def classes_of(
    frame: nw.DataFrame[Any], targets: Sequence[Any], categories: Sequence[Hashable]
) -> tuple[Value, ...] | None:
    """The class labels of y if it is text, categories or bools, or named in `categories`; None if y are numbers."""
    columns = {label: frame.get_column(label) for label in targets}
    labels = [label for label, column in columns.items() if label in categories or is_label(column)]
    wrong = [label for label in targets if label not in labels and not columns[label].dtype.is_numeric()]
    if wrong:
        raise TypeError(
            f"target must be a column of numbers or of class labels; got {wrong[0]!r} of dtype {columns[wrong[0]].dtype}: "
            "convert it to numbers or text first"
        )
    if not labels:
        return None
    if len(targets) > 1:
        raise ValueError(
            f"target must be one column if it has class labels, or columns of numbers; got {listed(targets)}, of which "
            f"{labels[0]!r} has labels, dtype {columns[labels[0]].dtype}"
        )
    check_no_missing(frame, labels, "df")
    values = values_of(frame, labels[0])
    if len(values) < 2:
        raise ValueError(f"target must have at least two classes: there is nothing to learn; got only {listed(values)}")
    return values


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
    of: Callable[[Tensor, torch.dtype], Standardize],
    values: np.ndarray[Any, Any],
    labels: Sequence[Hashable],
    chosen: set[Hashable],
    dtype: torch.dtype,
    further: int = 0,
) -> Standardize | None:
    """The standardisation of the chosen columns, computed in float64; others, and `further` ones, are left unchanged."""
    if not chosen & set(labels):
        return None
    observed = of(torch.from_numpy(values), dtype)
    kept = torch.tensor([label in chosen for label in labels])
    loc = torch.where(kept, observed.loc, torch.zeros_like(observed.loc))
    scale = torch.where(kept, observed.scale, torch.ones_like(observed.scale))
    loc, scale = torch.cat([loc, loc.new_zeros(further)]), torch.cat([scale, scale.new_ones(further)])
    return Standardize(loc.to(dtype), scale.to(dtype))
