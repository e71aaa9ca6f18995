"""Lay out a table in a given width without cutting a number or a name.

Text is wrapped between words. What is still too wide becomes several tables, one below the other, which repeat the first
column; and where its names leave no room for that, one block of lines per row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Row, Table
from rich.text import Text

_GAP = 2  # spaces between two columns
_INDENT = 4  # of the lines of a block
_ANY = 100_000  # characters, more than a table has
_ERROR = "s.e."  # the header of a standard error, which is beside its number


@dataclass(frozen=True)
class _Column:
    """A column of a table; one on the right has numbers, which are not wrapped."""

    header: Text
    cells: Sequence[Text]
    right: bool

    @property
    def least(self) -> int:
        """Its width if text is wrapped wherever there is a space."""
        words = max(map(_longest_word, (self.header, *self.cells)))
        return max(words, *map(_longest_line, self.cells), 1) if self.right else max(words, 1)

    @property
    def full(self) -> int:
        """Its width if nothing is wrapped."""
        return max(map(_longest_line, (self.header, *self.cells)))


class Uncut(Table):
    """A table of which nothing is cut wherever rich prints it: what is too wide for the place is laid out by `laid_out`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = self.__rich_measure__(console, options.update(width=_ANY)).maximum
        if natural <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield laid_out(self, options.max_width)


def laid_out(table: Table, width: int) -> Group:
    """A table within `width` characters, with its title above and its caption below.

    Args:
        table: with texts as cells; markup in strings is not interpreted. Columns of numbers are justified to the right.
    """
    columns = [
        _Column(_text(column.header), [_text(cell) for cell in column.cells], column.justify == "right")
        for column in table.columns
    ]
    parts: list[RenderableType] = []
    if table.title:
        title = _text(table.title)
        title.stylize("bold")
        parts.append(title)
    groups = _groups(columns, width)
    for number, group in enumerate(groups):
        parts += [Text()] * (number > 0) + [_side_by_side(group, table.rows, width)]
    if not groups:
        parts += _blocks(columns, table.rows)
    if table.caption:
        parts.append(_text(table.caption))
    return Group(*parts)


def _groups(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """The columns of each table, the first one in all; none if a name and a number do not fit side by side."""
    if not columns or _needed(columns) <= width:
        return [list(columns)]
    first, *others = columns
    units = _with_errors(others)
    if first.least > width // 2 or any(_needed([first, *unit]) > width for unit in units):
        return []
    tight = _filled(first, units, width, len(others))
    even = _filled(first, units, width, math.ceil(len(others) / len(tight)))
    return even if len(even) == len(tight) else tight


def _with_errors(columns: Sequence[_Column]) -> list[list[_Column]]:
    """Every column with that of its standard error, from which it is not separated."""
    units: list[list[_Column]] = []
    for column in columns:
        if units and column.header.plain == _ERROR:
            units[-1].append(column)
        else:
            units.append([column])
    return units


def _filled(first: _Column, units: Sequence[list[_Column]], width: int, most: int) -> list[list[_Column]]:
    """Groups of at most so many columns besides the first, in order, each as large as fits."""
    groups = [[first]]
    for unit in units:
        together = [*groups[-1], *unit]
        if len(groups[-1]) > 1 and (len(together) - 1 > most or _needed(together) > width):
            groups.append([first, *unit])
        else:
            groups[-1] = together
    return groups


def _needed(columns: Sequence[_Column]) -> int:
    return sum(column.least + _GAP for column in columns) - _GAP


def _side_by_side(columns: Sequence[_Column], rows: Sequence[Row], width: int) -> Table:
    """A table of these columns, of which the space that is left goes first to those that need the least of it."""
    spare, widths = width - _needed(columns), [column.least for column in columns]
    for number in sorted(range(len(columns)), key=lambda n: columns[n].full - columns[n].least):
        more = min(spare, columns[number].full - columns[number].least)
        widths[number], spare = widths[number] + more, spare - more
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold")
    for column, own in zip(columns, widths, strict=True):
        side = "right" if column.right else "left"
        made.add_column(column.header, width=own, justify=side, vertical="top", overflow="fold")  # type: ignore[arg-type]
    for number, row in enumerate(rows):
        made.add_row(*(column.cells[number] for column in columns), style=row.style)
        if row.end_section and number + 1 < len(rows):
            made.add_section()
    return made


def _blocks(columns: Sequence[_Column], rows: Sequence[Row]) -> Iterator[RenderableType]:
    """For every row its name, and below it one line per column."""
    names, *others = columns
    for number, row in enumerate(rows):
        yield Text(names.cells[number].plain, style=row.style or "", overflow="fold")
        lines = Table.grid(padding=(0, _GAP, 0, 0))
        lines.add_column(overflow="fold")
        lines.add_column(overflow="fold")
        for column in others:
            lines.add_row(column.header, column.cells[number])
        yield Padding(lines, (0, 0, 0, _INDENT))


def _text(content: object) -> Text:
    """Text without markup: names come from files too."""
    return content.copy() if isinstance(content, Text) else Text(str(content))


def _longest_word(text: Text) -> int:
    return max((cell_len(word) for word in text.plain.split()), default=0)


def _longest_line(text: Text) -> int:
    return max((cell_len(line.rstrip()) for line in text.plain.splitlines()), default=0)
