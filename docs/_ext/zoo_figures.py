"""Figures of the zoo's cards.

uci/...     root mean square error and log density of every posterior of our table on this data set, and the published ones
co2/...     predictions, which ``co2_figures.py`` has drawn from a run
toys/...    predictions of the trained posterior over the data
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from themes import THEMES, Theme, themed

from pyrodrop.analysis.lab.experiments.uci.protocol import PROTOCOLS
from pyrodrop.analysis.lab.experiments.uci.table import METRICS, cells, published_score
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.reports.style import GREY, RED
from pyrodrop.zoo import Entry, load
from pyrodrop.zoo.sources import SOURCES

PROTOCOL = "gal2016"
DRAWN = Path(__file__).parents[1] / "_static" / "zoo"


@dataclass(frozen=True)
class Figures:
    """A figure as a file for the light and for the dark theme, by the end of its name, and in words."""

    files: dict[str, bytes]
    description: str


def figures(entry: Entry) -> Figures | None:
    """The figure of an entry's card; None if there is none."""
    drawn = {f"-{theme.name}.png": DRAWN / f"{entry.name}-{theme.name}.png" for theme in THEMES}
    if all(path.is_file() for path in drawn.values()):
        description = (
            "Predictions of CO2 by year: the mean in blue with bands of one and two standard deviations of the function, "
            "observations for training in orange, and later ones as a thin line."
        )
        return Figures({end: path.read_bytes() for end, path in drawn.items()}, description)
    kind, _, name = entry.name.partition("/")
    if kind == "toys":
        described = (
            "Predictions over x: the mean in blue, bands of one and two standard deviations of y, training rows in orange, "
            "and test rows as rings."
        )
        return Figures({f"-{theme.name}.svg": toy(entry, theme) for theme in THEMES}, described)
    cells = uci_cells(name) if kind == "uci" else {}
    if not cells:
        return None
    description = (
        f"Test errors and log densities of the posteriors of our table on {name} (protocol {PROTOCOL}, which is longer than "
        f"this entry's): means with two standard errors over the splits, MC dropout in blue. The published result of MC "
        "dropout is the line in orange, with two standard errors."
    )
    return Figures({f"-{theme.name}.svg": uci(name, cells, theme) for theme in THEMES}, description)


def toy(entry: Entry, theme: Theme) -> bytes:
    """Mean and standard deviation of y under the stored posterior, a tenth of the range beyond the data on each side."""
    [split], posterior = SOURCES[entry.data].load(), load(entry.name, device="cpu")
    every = torch.cat([split.train.x, split.test.x])[:, 0]
    beyond = float(every.max() - every.min()) / 10
    x = torch.linspace(float(every.min()) - beyond, float(every.max()) + beyond, 200)
    predicted = posterior.predict(x[:, None], entry.draws, seed=0)
    mean, sd = predicted.mean[:, 0], predicted.sd[:, 0]
    with themed(theme):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.subplots()
        for width in (2, 1):
            axes.fill_between(x, mean - width * sd, mean + width * sd, color=theme.model, alpha=0.2, linewidth=0)
        axes.plot(x, mean, color=theme.model)
        axes.plot(split.test.x[:, 0], split.test.y[:, 0], "o", color=theme.ink, fillstyle="none", markersize=3)
        axes.plot(split.train.x[:, 0], split.train.y[:, 0], ".", color=RED, markersize=4)
        axes.set(xlabel=split.x_unit or "x", ylabel=split.y_unit or "y")
        return theme.svg(figure)


def uci_cells(name: str) -> dict[str, Mapping[str, Any]]:
    """Our cells of a data set by posterior."""
    title = {"auto": "", "grid": ", τ as Bernoulli"}
    ours = [(cell["settings"], cell) for (data, _), cell in cells(PROTOCOL).items() if data == name]
    return {s.guide + title.get(s.precision, f", τ {s.precision}"): cell for s, cell in ours}


def uci(name: str, cells: Mapping[str, Mapping[str, Any]], theme: Theme) -> bytes:
    """A panel for each metric with a row for each posterior."""
    with themed(theme):
        figure = Figure(figsize=(7.2, 0.7 + 0.26 * len(cells)), layout="constrained")
        panels = figure.subplots(1, len(METRICS), sharey=True)
        for axes, (metric, title) in zip(panels, METRICS.items(), strict=True):
            panel(axes, {column: cell[metric] for column, cell in cells.items()}, theme)
            theirs = published_score(PROTOCOLS[PROTOCOL].published, name, metric)
            if theirs is not None:
                mean, error = theirs
                axes.axvline(mean, color=RED, linewidth=1)
                axes.axvspan(mean - 2 * (error or 0), mean + 2 * (error or 0), color=RED, alpha=0.15, linewidth=0)
            axes.set_title(title if metric == "rmse" else f"{title}, nats")
        panels[0].invert_yaxis()
        return theme.svg(figure)


def panel(axes: Axes, values: Mapping[str, Any], theme: Theme) -> None:
    """Means with two standard errors, a row each."""
    for row, (column, each) in enumerate(values.items()):
        mean, error = mean_and_error(each)
        colour = theme.model if column.startswith("bernoulli") else GREY
        axes.errorbar(mean, row, xerr=2 * (error or 0), color=colour, marker="o", markersize=4, linewidth=1.2)
    axes.set_yticks(range(len(values)), list(values))
