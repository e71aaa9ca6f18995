"""Figure 2 of Gal & Ghahramani (2016): one panel per model, with bands of half a standard deviation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pyrodrop.analysis.plots import shades
from pyrodrop.analysis.reports.style import BLACK, BLUE, RED, styled
from pyrodrop.data import Split
from pyrodrop.prediction.prediction import Prediction


@styled()
def draw(series: Split, points: Tensor, far: float, curves: Mapping[str, Prediction]) -> Figure:
    """The figure with one panel per prediction in `curves`, at x = `points`; `far` is marked in red."""
    columns = 2
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(12, 2.4 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (title, curve) in zip(panels, curves.items(), strict=False):
        _panel(axes, title, series, points, far, curve)
    _limits(panels[0], series)
    for hidden in range(len(curves), len(panels)):
        panels[hidden - columns].tick_params(labelbottom=True)  # the last panel of its column
        panels[hidden].axis("off")
    for last in panels[len(curves) - min(columns, len(curves)) : len(curves)]:
        last.set_xlabel(series.x_unit)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.supylabel(f"{series.name}, {series.y_unit}")
    return figure


def _panel(axes: Axes, title: str, series: Split, points: Tensor, far: float, curve: Prediction) -> None:
    shades(axes, points[:, 0], curve.mean[:, 0], curve.spread[:, 0])
    axes.plot(series.train.x[:, 0], series.train.y[:, 0], color=RED, linewidth=0.9, label="observed, for training")
    if series.truth:
        axes.plot(series.test.x[:, 0], series.test.y[:, 0], color=BLACK, linewidth=0.6, label="observed, held out")
    axes.axvline(float(series.train.x.max()), color=BLUE, linestyle="--", linewidth=0.9, label="end of training data")
    axes.axvline(far, color=RED, linestyle="--", linewidth=0.7, label="a point far from the data")
    axes.set_title(title)


def _limits(axes: Axes, series: Split) -> None:
    """Axis limits from the observations, so that wide bands of one model do not compress the others."""
    y = torch.cat([series.train.y, series.test.y]) if series.truth else series.train.y
    low, high = float(y.min()), float(y.max())
    margin = 0.35 * (high - low)
    axes.set_ylim(low - margin, high + margin)
