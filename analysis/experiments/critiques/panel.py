"""What a panel of the page consists of."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pyrodrop.analysis.reports.runs import PNG
from pyrodrop.json_files import Record

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

    def to_json(self) -> dict[str, Any]:
        """Everything, with the figure in base 64."""
        return {**self.content, "figure": base64.b64encode(self.figure).decode()}

    @classmethod
    def from_record(cls, record: Record) -> Panel:
        """A panel from what `to_json` made.

        Raises:
            ValueError: an entry is missing or is not what a panel has.
        """
        words = {key: record.text(key) for key in ("title", "paper", "link", "shown")}
        if not words["link"].startswith(("https://", "http://")):
            raise record.fault(f"must have a link that begins with https:// or http://; it has {words['link']!r:.60}")
        tables, facts, helps = record.record("tables"), record.record("facts"), record.content.get("helps")
        for caption in tables.content:
            rows = tables.record(caption)
            for name in rows.content:
                rows.record(name)
        if not all(isinstance(holds, bool) for holds in facts.content.values()):
            raise record.fault("must have true or false for each of its facts")
        if not isinstance(helps, list) or not all(isinstance(line, str) for line in helps):
            raise record.fault("must have a list of sentences as helps")
        try:
            figure = base64.b64decode(record.text("figure"), validate=True)
        except binascii.Error:
            figure = b""
        if not figure.startswith(PNG):
            raise record.fault("must have a PNG file in base 64 as figure")
        return cls(**words, tables=tables.content, facts=facts.content, helps=tuple(helps), figure=figure)
