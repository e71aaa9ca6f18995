"""The look of every figure: one palette, one set of matplotlib's parameters, and one way to write a file.

The colours are those of Okabe & Ito (2008), Color Universal Design (https://jfly.uni-koeln.de/color/), which people with any
kind of colour vision can distinguish, and a grey for references. `BLUE` is used for a model, `RED` for observations and
`BLACK` for held-out observations; categories use `SERIES` in order.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrodrop.files import whole

BLACK, GREY, PALE, WHITE = "#222222", "#777777", "#dddddd", "#ffffff"
BLUE, RED, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
SERIES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
SEQUENTIAL = "magma"

INK = {"light": "#1f2328", "dark": "#e6edf3"}  # of text on a page of this theme

_PARAMETERS = {
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.labelsize": "medium",
    "font.size": 9,
    "legend.frameon": False,
}
_DOTS_PER_INCH = 110


@contextmanager
def styled(*, pyplot: bool = False) -> Iterator[None]:
    """A context manager or decorator that applies this style; `pyplot` if figures are made by pyplot."""
    if pyplot:
        import matplotlib.pyplot as plt

        plt.draw_if_interactive()  # loads the backend now; if loaded in the context, its settings would be undone
    with matplotlib.rc_context(_PARAMETERS):
        yield


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG atomically, and close it if it is pyplot's."""
    import matplotlib.pyplot as plt

    with whole(path) as file:
        file.write_bytes(png(figure))
    plt.close(figure)


def transparent_png(figure: Figure, dots_per_inch: int) -> bytes:
    """A figure without a background as the content of a PNG file, for pages of any theme."""
    file = io.BytesIO()
    with matplotlib.rc_context({"savefig.facecolor": "none"}):
        figure.savefig(file, dpi=dots_per_inch, format="png", transparent=True)
    return file.getvalue()


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, dpi=_DOTS_PER_INCH, format="png")
    return file.getvalue()


class OfPyplot(Figure):
    """A figure of pyplot that a notebook shows once: if it is the value of a cell, pyplot does not show it again."""

    def _ipython_display_(self) -> None:
        import matplotlib.pyplot as plt

        plt.close(self)
        raise NotImplementedError  # IPython then shows it as any figure


def subplots(rows: int, columns: int, size: tuple[float, float], **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of pyplot with `size` in inches, and a list of its panels row by row."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained", FigureClass=OfPyplot)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).ravel())


def draw_ecdf(axes: Axes, values: Any, level: float, color: str) -> None:
    """Draw the empirical distribution function of values ``[N]`` minus the uniform one.

    N uniform values leave the grey band somewhere with probability `level`: Säilynoja, Bürkner & Vehtari (2022), Graphical
    test for discrete uniformity, https://doi.org/10.1007/s11222-022-10090-6. The band is ArviZ's, and its figures are not
    used: they depend on its version, and in ArviZ 1 they are smoothed and have no band.
    """
    at, _, low, high = _band(len(values), level)
    inside = (at > 0) & (at < 1)  # ArviZ 1 also returns the ends 0 and 1
    axes.fill_between(at, low - at, high - at, where=inside, color=GREY, alpha=0.25, linewidth=0)
    x = np.concatenate([[0.0], np.sort(values).repeat(2), [1.0]])
    axes.plot(x, np.linspace(0, 1, len(values) + 1).repeat(2) - x, color=color)


@functools.cache
def _band(count: int, level: float) -> Any:
    from arviz_stats.ecdf_utils import ecdf_pit  # slow to import

    return ecdf_pit(np.linspace(0, 1, count), 1 - level, 1000)
