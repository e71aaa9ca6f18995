"""Figures of a sparse training: its progress over epochs, and the kept weights as images."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from pyrodrop.analysis.reports.style import BLUE, DIVERGING, GREY, PALE, SEQUENTIAL, SERIES, WHITE, styled


@styled()
def draw_progress(rows: Sequence[dict[str, Any]], sites: Sequence[str], published: float | None) -> Figure:
    """Plot error, share of kept weights per layer and compression over epochs; grey while the KL weight is below 1.

    Args:
        rows: rows of an `EpochLog`.
        sites: names of the weights.
        published: published compression, shown as a line.
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
    if published is not None:
        right.axhline(published, color=GREY, linestyle="--")
        right.annotate("published", (0, published), xytext=(4, -12), textcoords="offset points", color=GREY)
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


@styled()
def draw_weights(weights: dict[str, Tensor]) -> Figure:
    """Plot the kept entries of every weight as an image; for fully connected networks also the used pixels."""
    names = list(weights)
    first = weights[names[0]].cpu()
    pixels = first.shape[1] == 784
    figure = Figure(figsize=(3.4 * (len(names) + pixels), 3.4), layout="constrained")
    places = list(figure.subplots(1, len(names) + pixels))
    if pixels:
        shown = places.pop(0).imshow((first != 0).sum(0).reshape(28, 28), cmap=SEQUENTIAL)
        shown.axes.set_title("weights left by pixel")
        shown.axes.set_axis_off()
        figure.colorbar(shown, ax=shown.axes, shrink=0.75)
    for axes, name in zip(places, names, strict=True):
        weight = weights[name].cpu()
        if weight.dim() == 4 and weight.shape[1] == 1:
            _draw_filters(axes, name, weight[:, 0])
        else:
            _draw_matrix(axes, name, weight.flatten(1))
    return figure


def _draw_filters(axes: Axes, name: str, filters: Tensor) -> None:
    """Filters ``[maps, height, width]`` as images, five per row; pruned weights are grey."""
    maps, height, width = filters.shape
    sheet = torch.full((-(-maps // 5) * (height + 1) + 1, 5 * (width + 1) + 1), torch.nan)
    for number, kernel in enumerate(filters):
        top, left = (number // 5) * (height + 1) + 1, (number % 5) * (width + 1) + 1
        sheet[top : top + height, left : left + width] = torch.where(kernel == 0, torch.nan, kernel)
    reach = float(filters.abs().max()) or 1.0
    axes.set_facecolor(PALE)
    axes.imshow(sheet, cmap=DIVERGING, vmin=-reach, vmax=reach, interpolation="nearest")
    for line in range(0, sheet.shape[0], height + 1):
        axes.axhline(line, color=WHITE, linewidth=3)
    for line in range(0, sheet.shape[1], width + 1):
        axes.axvline(line, color=WHITE, linewidth=3)
    count = int((filters != 0).sum())
    axes.set_title(f"{name.removesuffix('.weight')}: {count:,} of {filters.numel():,} left")
    axes.set_xlabel(f"{int((filters != 0).flatten(1).any(1).sum())} of {maps} maps alive")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_matrix(axes: Axes, name: str, weight: Tensor) -> None:
    """Rows are output units, columns inputs; red is positive, blue negative. Rows and columns of zeros are left out."""
    rows, columns = (weight != 0).any(1), (weight != 0).any(0)
    left = weight[rows][:, columns]
    count = int((weight != 0).sum())
    axes.set_title(f"{name.removesuffix('.weight')}: {count:,} of {weight.numel():,} left")
    axes.set_xlabel(f"{int(columns.sum())} of {weight.shape[1]} inputs used")
    axes.set_ylabel(f"{int(rows.sum())} of {weight.shape[0]} units alive")
    axes.set_xticks([])
    axes.set_yticks([])
    if left.numel():
        reach = float(torch.quantile(left[left != 0].abs()[:100_000], 0.98))
        axes.imshow(left, cmap=DIVERGING, vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
