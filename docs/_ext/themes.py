"""Figures for the light and the dark theme of the site: without a ground, and with ink that can be read on it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from pyrodrop.analysis.reports.style import BLACK, BLUE, SKY, styled


@dataclass(frozen=True)
class Theme:
    """A theme, the colour of its text and that of a model."""

    name: str
    ink: str
    model: str

    def png(self, figure: Figure) -> bytes:
        """A figure as PNG, for screens with two dots per pixel."""
        return self._saved(figure, "png")

    def svg(self, figure: Figure) -> bytes:
        """A figure as SVG: the same bytes for the same figure."""
        return self._saved(figure, "svg")

    def _saved(self, figure: Figure, kind: str) -> bytes:
        file = io.BytesIO()
        # Without a date, and with the same names of its parts, a figure that has not changed is the same file.
        settings = {"svg.hashsalt": "pyrodrop", "svg.fonttype": "path"}
        with matplotlib.rc_context(settings):
            figure.savefig(
                file, format=kind, dpi=160, transparent=True, metadata={"Date": None} if kind == "svg" else None
            )
        return file.getvalue()


THEMES = (Theme("light", BLACK, BLUE), Theme("dark", "#d8d8d8", SKY))


def inked(figure: Figure, theme: Theme) -> Figure:
    """The figure with what it draws in black in the theme's ink."""
    artists: list[Any] = figure.findobj(lambda artist: hasattr(artist, "get_color"))
    for artist in artists:
        if isinstance(colour := artist.get_color(), str) and colour == BLACK:
            artist.set_color(theme.ink)
    return figure


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """A context in which figures are made for a theme."""
    names = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color")
    with styled(), matplotlib.rc_context(dict.fromkeys(names, theme.ink)):
        yield
