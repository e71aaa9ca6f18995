"""What a panel of the page consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Size = Literal["default", "quick", "long"]
Table = Mapping[str, Mapping[str, Any]]


T = TypeVar("T")


def sized(sizes: Mapping[Size, T], size: Size) -> T:
    """The settings of a size; those of ``default`` where a panel has none of its own."""
    return sizes.get(size, sizes["default"])


@dataclass(frozen=True)
class Panel:
    """One critique: what it says, our numbers beside known ones, and what helps.

    Attributes:
        title: the critique in a line.
        paper: author and year.
        link: address of the paper.
        shown: what the panel shows, in two to four sentences.
        tables: rows of numbers by caption; a row is a mapping from column to value.
        facts: statements about these numbers, each with whether it holds in this run.
        helps: what helps, in sentences whose numbers are those of this run.
        figure: content of a PNG file.
    """

    title: str
    paper: str
    link: str
    shown: str
    tables: Mapping[str, Table]
    facts: Mapping[str, bool]
    helps: tuple[str, ...]
    figure: bytes

    @property
    def content(self) -> dict[str, Any]:
        """Everything but the figure, for results.json."""
        return {
            "title": self.title,
            "paper": self.paper,
            "link": self.link,
            "shown": self.shown,
            "tables": {
                caption: {name: dict(row) for name, row in rows.items()} for caption, rows in self.tables.items()
            },
            "facts": dict(self.facts),
            "helps": list(self.helps),
        }
