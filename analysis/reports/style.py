"""The look of every figure: one palette, one set of matplotlib's parameters, and one way to write a file.

The colours are those of Okabe & Ito (2008), Color Universal Design (https://jfly.uni-koeln.de/color/), which people with any
kind of colour vision can tell apart, with a grey for what a result is compared with. `BLUE` is a model's, `RED` the
observations' and `BLACK` the held-out observations'; categories take `SERIES` in order.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrodrop.files import whole

BLACK, GREY, PALE, WHITE = "#222222", "#777777", "#dddddd", "#ffffff"
BLUE, RED, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
SERIES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
DIVERGING = "RdBu_r"  # from negative values in blue to positive values in red
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
    """A context, or a decorator of a function, in which figures are made in this style; with `pyplot`, as its figures."""
    if pyplot:
        import matplotlib.pyplot as plt

        plt.draw_if_interactive()  # loads the backend, whose settings the end of the context would undo
    with matplotlib.rc_context(_PARAMETERS):
        yield


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, and close it if it is pyplot's; the file is whole or not there."""
    import matplotlib.pyplot as plt

    with whole(path) as file:
        file.write_bytes(png(figure))
    plt.close(figure)


def transparent_png(figure: Figure, dots_per_inch: int) -> bytes:
    """A figure without a ground as the content of a PNG file, for pages of any theme."""
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
    """A figure of pyplot. As the value of a notebook's cell pyplot does not show it again at the cell's end."""

    def _ipython_display_(self) -> None:
        import matplotlib.pyplot as plt

        plt.close(self)
        raise NotImplementedError  # IPython then shows it as any figure


def subplots(rows: int, columns: int, size: tuple[float, float], **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of pyplot, its size in inches, and its panels row by row."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained", FigureClass=OfPyplot)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).ravel())
