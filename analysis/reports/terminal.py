"""Print tables and paragraphs in the width of the terminal. Tables are laid out by rich, and no number is cut.

The width is that of ``COLUMNS`` or of the terminal, or 80 if there is neither. Control codes are written only to a
terminal, and not if ``NO_COLOR`` is set.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, RichCast
from rich.table import Table

_LEAST = 20  # characters of a line, however narrow the terminal is
_ANY = 100_000  # characters, more than a table has


def console() -> Console:
    """The console of rich for standard output."""
    plain = "auto" if not os.environ.get("NO_COLOR") else None
    screen = Console(color_system=plain, highlight=False, markup=False, emoji=False)  # type: ignore[arg-type]
    screen.width = max(_LEAST, screen.width)
    return screen


def text_table(
    title: str, rows: Iterable[Sequence[str]], *, caption: str | None = None, left: int = 1, lines: bool = False
) -> Table:
    """A table of texts.

    Args:
        rows: the header and the rows.
        left: number of columns that are justified to the left; the others are justified to the right.
        lines: whether there is a line below every row.
    """
    header, *body = rows
    table = Table(title=title, caption=caption, show_lines=lines)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number < left else "right")
    for row in body:
        table.add_row(*row)
    return table


def print_table(shown: Table | RichCast) -> None:
    """Print a table, or an object that converts to one by ``__rich__``; no number in it is cut."""
    table = shown if isinstance(shown, Table) else shown.__rich__()
    if not isinstance(table, Table):
        raise TypeError(f"print_table prints tables; got {type(table).__name__}")
    table.box, table.show_edge, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, False, (0, 1, 0, 0)
    table.title_justify = table.caption_justify = "left"
    print("\n".join(map(str.rstrip, text_of(table, console()).splitlines())))


def text_of(table: Table, screen: Console) -> str:
    """A table as text in the width of a screen. If numbers do not fit, lines are longer instead of cutting them.

    Args:
        table: a table; cells of columns that are justified to the right (numbers) or without wrapping stay on one line.
    """
    without_limit = screen.options.update(width=_ANY)
    if table.__rich_measure__(screen, without_limit).maximum > screen.width:
        for column in table.columns:
            if column.justify == "right" or column.no_wrap:
                column.width = max(map(cell_len, [*map(str, column.cells), *str(column.header).split()]), default=None)
        screen.width = max(screen.width, table.__rich_measure__(screen, without_limit).minimum)
    with screen.capture() as text:
        screen.print(table)
    return text.get()


def paragraph(text: str, *, first: str = "", then: str = "") -> None:
    """Print text in lines of the width of the terminal.

    Args:
        text: a sentence or more; its own line breaks are kept.
        first: beginning of the first line.
        then: beginning of the other lines.
    """
    width = console().width
    for number, line in enumerate(text.splitlines() or [""]):
        print(_wrapped(line, width, then if number else first, then))


def pairs(rows: Mapping[str, str] | Iterable[tuple[str, str]], *, indent: int = 2) -> None:
    """Print names, each with a text beside it, or below it if the names take more than half of the width."""
    rows = list(rows.items() if isinstance(rows, Mapping) else rows)
    widest = indent + max((len(name) for name, _ in rows), default=0) + 2
    beside = widest <= console().width // 2
    for name, text in rows:
        if beside:
            paragraph(text, first=f"{'':{indent}}{name}".ljust(widest), then=" " * widest)
        else:
            print(f"{'':{indent}}{name}")
            paragraph(text, first=" " * (indent + 4), then=" " * (indent + 4))


def _wrapped(line: str, width: int, first: str, then: str) -> str:
    """Lines of a line; no word is cut, since it may be a number or a path."""
    return textwrap.fill(
        line, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    ) or first.rstrip()  # fmt: skip
