"""Parts of a Markdown page that are generated from result files, each between two marks.

<!-- uci: generated -->
...
<!-- uci: end -->
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pyrodrop.analysis.lab import RESULTS
from pyrodrop.files import whole

REFERENCES = RESULTS / "README.md"


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its header."""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body))


def marked(name: str, text: str) -> str:
    """The text of a part between its marks, as it stands in a page."""
    return f"<!-- {name}: generated -->\n{text}<!-- {name}: end -->\n"


def put(page: Path, name: str, text: str) -> None:
    """Replace the text of a part of a page.

    Raises:
        ValueError: the page does not have both marks, in order and once.
    """
    old = page.read_text(encoding="utf-8")
    begin, end = marked(name, "").splitlines(keepends=True)
    if old.count(begin) != 1 or old.count(end) != 1 or old.index(begin) > old.index(end):
        raise ValueError(f"{page} needs the lines {begin.strip()!r} and {end.strip()!r}, once and in this order")
    before, rest = old.split(begin)
    _, after = rest.split(end)
    with whole(page) as file:
        file.write_text(before + marked(name, text) + after, encoding="utf-8")
