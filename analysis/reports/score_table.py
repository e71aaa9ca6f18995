"""Scores by name as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from rich.table import Table
from rich.text import Text

Score = float | None  # None if there is none
Row = TypeVar("Row", bound=Mapping[str, Score])


def score_table(
    rows: Mapping[str, Mapping[str, Score]],
    *,
    title: str,
    caption: str | None = None,
    corner: str = "",
    headers: Mapping[str, str] | None = None,
    forms: Mapping[str, str] | None = None,
    form: str = ".4g",
    apart: Mapping[str, Mapping[str, Score]] | None = None,
) -> Table:
    """A table with one row per name and one column per score.

    Args:
        rows: scores by name and column; a score that is missing, None or NaN is shown as a dash.
        title, caption: texts above and below the table.
        corner: the header of the names.
        headers: headers of columns; a column without one is shown by its name.
        forms: format of a column's numbers, such as ``.2f``.
        form: format of the other columns.
        apart: further rows, below a line.
    """
    headers, forms = headers or {}, forms or {}
    table = Table(title=_plain(title), caption=caption and _plain(caption), caption_justify="left")
    table.add_column(corner, no_wrap=True, overflow="fold")
    below = apart or {}
    columns = list(dict.fromkeys(column for row in [*rows.values(), *below.values()] for column in row))
    for column in columns:
        table.add_column(_plain(headers.get(column, column)), justify="right", overflow="fold")
    for group in (rows, below):
        for name, row in group.items():
            table.add_row(_plain(name), *(cell(row.get(column), forms.get(column, form)) for column in columns))
        table.add_section()
    return table


def best_first(rows: Mapping[str, Row], column: str, *, smallest: bool = False) -> dict[str, Row]:
    """The rows in descending order of one score, or ascending if the smallest is best; those without it last."""
    return {name: rows[name] for name in sorted(rows, key=lambda name: _rank(rows[name].get(column), smallest))}


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error, None for a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def cell(value: Score, form: str) -> str:
    """A number in this format; a dash for None and NaN."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def _plain(text: str) -> Text:
    """Text that is not parsed as markup: names may come from files."""
    return Text(text)


def _rank(value: Score, smallest: bool) -> float:
    if value is None or math.isnan(value):
        return math.inf
    return value if smallest else -value
