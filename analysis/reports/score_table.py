"""Scores by name as a table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from rich.table import Table
from rich.text import Text

Score = float | None  # None where there is none
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
        rows: scores by name and column; where one is missing, None or NaN, the table has a dash.
        title, caption: above and below the table.
        corner: the header of the names.
        headers: of the columns; the others are shown by their name.
        forms: format of a column's numbers, such as ``.2f``.
        form: format of the other columns.
        apart: further rows, below a line.
    """
    headers, forms = headers or {}, forms or {}
    table = Table(title=_plain(title), caption=caption and _plain(caption), caption_justify="left")
    table.add_column(corner, no_wrap=True)
    below = apart or {}
    columns = list(dict.fromkeys(column for row in [*rows.values(), *below.values()] for column in row))
    for column in columns:
        table.add_column(_plain(headers.get(column, column)), justify="right")
    for part in (rows, below):
        for name, row in part.items():
            table.add_row(_plain(name), *(cell(row.get(column), forms.get(column, form)) for column in columns))
        table.add_section()
    return table


def best_first(rows: Mapping[str, Row], column: str, *, smallest: bool = False) -> dict[str, Row]:
    """The rows in descending order of one score, or ascending if the smallest is best; those without it last."""
    return {name: rows[name] for name in sorted(rows, key=lambda name: _rank(rows[name].get(column), smallest))}


def cell(value: Score, form: str) -> str:
    """A number in this format, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def _plain(text: str) -> Text:
    """Text without markup: names come from files too."""
    return Text(text)


def _rank(value: Score, smallest: bool) -> float:
    if value is None or math.isnan(value):
        return math.inf
    return value if smallest else -value
