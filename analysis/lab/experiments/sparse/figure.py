"""The figure of a sparse training: its progress over epochs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from pyrodrop.analysis.reports.style import BLUE, GREY, SERIES, styled


@styled()
def draw_progress(rows: Sequence[dict[str, Any]], sites: Sequence[str]) -> Figure:
    """Plot error, share of kept weights per layer and compression over epochs; grey while the KL weight is below 1.

    Args:
        rows: rows of an `EpochLog`.
        sites: names of the weights.
    """
    epochs = [row["epoch"] for row in rows]
    full = [row for row in rows if row["sparsity"] is not None]
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(epochs, [100 * row["error_dense"] for row in rows], color=GREY, label="nothing cut")
    left.plot(epochs, [100 * row["error"] for row in rows], color=BLUE, label="cut")
    left.set_ylim(0, 2.5 * max(0.4, sorted(100 * row["error"] for row in rows)[len(rows) // 2]))
    left.set_title("test error, %")
    for site, colour in zip(sites, itertools.cycle(SERIES), strict=False):
        kept = [100 * (1 - row["sparsity"][site]) for row in full]
        middle.plot([row["epoch"] for row in full], kept, color=colour, label=site.removesuffix(".weight"))
    middle.set_yscale("log")
    middle.set_ylim(top=100)
    middle.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    middle.yaxis.set_major_formatter("{x:g}")
    middle.yaxis.set_minor_formatter("")
    middle.set_title("weights left, %")
    some = [row for row in full if row["compression"] is not None]
    right.plot([r["epoch"] for r in some], [r["compression"] for r in some], color=BLUE)
    right.set_title("weights over weights left")
    right.set_ylim(bottom=0)
    for axes in (left, middle, right):
        axes.set_xlim(0, epochs[-1])
        axes.set_xlabel("epoch")
        if full:
            axes.axvspan(0, full[0]["epoch"] - 0.5, color=GREY, alpha=0.12, linewidth=0, zorder=0)
    for axes in (left, middle):
        axes.legend()
    return figure
