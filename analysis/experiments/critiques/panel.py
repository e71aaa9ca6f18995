"""What the repetition of a paper consists of, and settings by the size of a run."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Size = Literal["default", "quick", "long"]
Table = Mapping[str, Mapping[str, Any]]


T = TypeVar("T")


def sized(sizes: Mapping[Size, T], size: Size) -> T:
    """The settings of a size; those of ``default`` where there are none for it."""
    return sizes.get(size, sizes["default"])


@dataclass(frozen=True)
class Panel:
    """One critique: what it says, our numbers beside known ones, and what helps.

    Attributes:
        title: the critique in a line.
        paper: author and year.
        link: address of the paper.
        shown: what is measured, in two to four sentences.
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

    def to_json(self) -> dict[str, Any]:
        """All fields by name, with the figure in base 64."""
        return {**vars(self), "helps": list(self.helps), "figure": base64.b64encode(self.figure).decode()}
