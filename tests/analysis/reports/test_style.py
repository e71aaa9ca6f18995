"""The one style of all figures."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import image
from matplotlib.figure import Figure

from pyrodrop.analysis.reports.style import BLUE, styled, write_figure


def test_a_function_in_this_style_leaves_no_trace(tmp_path: Path) -> None:
    @styled()
    def drawn() -> Figure:
        figure = Figure(figsize=(2, 1))
        axes = figure.subplots()
        axes.plot([1, 3, 2], label="line")
        axes.set_title("title")
        axes.legend()
        return figure

    before = dict(matplotlib.rcParams)
    figure = drawn()
    assert dict(matplotlib.rcParams) == before
    (axes,) = figure.axes
    assert axes.lines[0].get_color() == BLUE
    assert axes.get_title("left") == "title"
    assert not axes.spines["top"].get_visible()
    assert not axes.get_legend().get_frame_on()
    write_figure(tmp_path / "figure.png", figure)
    assert image.imread(tmp_path / "figure.png").shape == (110, 220, 4)
