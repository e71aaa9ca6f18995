"""Figures of the zoo's cards."""

from __future__ import annotations

from dataclasses import dataclass

from pyrodrop.zoo import Entry


@dataclass(frozen=True)
class Figures:
    """A figure as SVG files for the light and the dark theme, and in words."""

    files: dict[str, bytes]
    words: str


def figures(entry: Entry) -> Figures | None:
    return None
