"""The tables and the figure of the twenty small problems, from their stored results.

python -m pyrodrop.analysis.lab.benchmarks.small_pages        writes docs/_static/twenty-problems.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrodrop.analysis.lab import ROOT, generated, tidy
from pyrodrop.analysis.lab.benchmarks.small_fits import GUIDES, METHODS, SETTINGS, SIDE, points, read, shown
from pyrodrop.analysis.lab.benchmarks.small_problems import Problem, problem
from pyrodrop.analysis.reports.style import BLACK, BLUE, RED, SEQUENTIAL, SERIES, styled, write_figure

RESULTS = Path(__file__).with_name("results") / "small-problems.csv"
FIGURE = ROOT / "docs" / "_static" / "twenty-problems.png"
CLOSE = 0.15  # nats per row
MIXED = 1.2  # R-hat of f, above which chains have not mixed
_PANEL = (1.45, 1.15)  # inches
Cells = Mapping[str, Any]


def text(problems: Mapping[str, Cells], setting: str) -> str:
    """The table of a setting in Markdown: log densities inside / away, and numbers of problems close to the exact one."""
    columns = _columns(setting)
    lines = [["problem", "rows", "constant", *(name.split(": ")[-1] for name in columns)]]
    for name, cells in _of(problems, setting).items():
        lines.append(
            [
                name,
                f"{cells['constant']['rows']:.0f}",
                *(_scores(cells.get(column)) for column in ("constant", *columns)),
            ]
        )
    lines += [[title, "", "", "", "", *map(str, counts)] for title, counts in _counts(problems, setting).items()]
    return generated.table(lines) + "\n"


def counts_text(problems: Mapping[str, Cells]) -> str:
    """The numbers of problems of both settings, in Markdown."""
    guides = {setting: [name.split(": ")[-1] for name in _columns(setting)[2:]] for setting in SETTINGS}
    lines = [["priors and noise", "problems", *guides["default"]]]
    for setting, names in guides.items():
        for title, counts in _counts(problems, setting).items():
            cells = dict(zip(names, counts, strict=True))
            lines.append([setting, title, *(str(cells.get(name, "")) for name in guides["default"])])
    return generated.table(lines) + "\n"


def _columns(setting: str) -> list[str]:
    """The columns of a setting: the process, the exact posterior, and then the guides."""
    methods = [f"{setting}: {method}" for method in METHODS]
    return ["GP", f"{setting}: exact", *(method for method in methods if not method.endswith("exact"))]


def _of(problems: Mapping[str, Cells], setting: str) -> Mapping[str, Cells]:
    return {name: cells for name, cells in problems.items() if f"{setting}: exact" in cells}


def _counts(problems: Mapping[str, Cells], setting: str) -> dict[str, list[int]]:
    """By title: on how many problems each guide is close to the exact posterior, and below a constant."""
    _, exact, *guides = _columns(setting)
    every = list(_of(problems, setting).values())
    mixed = [cells for cells in every if _mixed(cells[exact])]
    return {
        f"within {CLOSE} of exact, of {len(mixed)}": [
            sum(c[g]["inside"] > c[exact]["inside"] - CLOSE for c in mixed if g in c) for g in guides
        ],
        f"below a constant, of {len(every)}": [
            sum(c[g]["inside"] < c["constant"]["inside"] for c in every if g in c) for g in guides
        ],
    }


def one_call_text(problems: Mapping[str, Cells]) -> str:
    """What one call predicts beside the better of the exact posterior and the process, in Markdown."""
    lines, close = [["problem", "constant", "GP", "exact", "recipes.curve", "core-seconds"]], 0
    for name, cells in problems.items():
        exact, cell = cells[shown(cells)["exact"]], cells["one call"]
        others = [each["inside"] for each in (cells.get("GP"), exact) if each]
        close += any(cell["inside"] > other - CLOSE for other in others)
        scores = (_scores(each) for each in (cells["constant"], cells.get("GP"), exact, cell))
        lines.append([name, *scores, f"{cell['seconds']:.0f}"])
    lines.append([f"within {CLOSE} of exact or GP, of {len(problems)}", "", "", "", str(close), ""])
    return generated.table(lines) + "\n"


def _mixed(cell: Any) -> bool:
    """Whether the chains of an exact posterior have mixed; True for methods without chains."""
    return bool(cell.get("r_hat_f", 1.0) <= MIXED)


def _scores(cell: Any) -> str:
    """Both log densities, with a star if the chains have not mixed."""
    return f"{cell['inside']:.2f} / {cell['away']:.2f}{'' if _mixed(cell) else ' *'}" if cell else ""


@styled()
def figure(problems: Mapping[str, Cells], curves: Mapping[str, np.ndarray]) -> Figure:
    """A row for each problem: a Gaussian process, the exact posterior, and the guides, with the priors of `priors.from_gp`
    or, where there are none, with N(0, 1): mean and two standard deviations of y by x, or a map of the standard deviation or
    the entropy of y."""
    methods = ["GP", "exact", *GUIDES]
    made = Figure(figsize=(len(methods) * _PANEL[0], len(problems) * _PANEL[1]), layout="constrained")
    panels = made.subplots(len(problems), len(methods), squeeze=False, sharey="row")
    for row, (name, cells) in zip(panels, problems.items(), strict=True):
        of = problem(name)
        drawn = shown(cells)
        most = max(float(curves[key].max()) for each in drawn.values() if (key := f"{name}/{each}/sd") in curves)
        for axes, method in zip(row, methods, strict=True):
            axes.set(xticks=[], yticks=[])
            if cell := cells.get(drawn[method]):
                mean, sd = (curves[f"{name}/{drawn[method]}/{what}"].astype(float) for what in ("mean", "sd"))
                _draw(axes, of, mean, sd, most)
                axes.set_xlabel(f"{cell['inside']:.2f} / {cell['away']:.2f}", fontsize=6, labelpad=1)
            else:
                axes.spines[:].set_visible(False)
        row[0].set_ylabel(name, fontsize=7)
    for axes, method in zip(panels[0], methods, strict=True):
        axes.set_title(method, fontsize=8)
    return made


def _draw(axes: Axes, of: Problem, mean: np.ndarray, sd: np.ndarray, most: float) -> None:
    """A curve, or a map whose brightest value is `most`."""
    x = points(of).numpy()
    rows = of.train.x.numpy()
    if x.shape[1] == 1:
        axes.fill_between(x[:, 0], mean - 2 * sd, mean + 2 * sd, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(x[:, 0], mean, color=BLUE, linewidth=0.9)
        for part, colour in ((of.train, RED), (of.away, BLACK)):
            axes.plot(part.x[:, 0], part.y.reshape(len(part)), ".", color=colour, markersize=1.3)
        y = np.concatenate([part.y.numpy().ravel() for part in (of.train, of.inside, of.away)])
        margin = 0.35 * (y.max() - y.min())
        axes.set_ylim(y.min() - margin, y.max() + margin)
        return
    ends = (x[0, 0], x[-1, 0], x[0, 1], x[-1, 1])
    axes.imshow(
        sd.reshape(SIDE, SIDE).T, origin="lower", extent=ends, aspect="auto", cmap=SEQUENTIAL, vmin=0, vmax=most
    )
    colours: Sequence[str] = [SERIES[2 + int(label)] for label in of.train.y] if of.classes else [BLUE] * len(rows)
    axes.scatter(rows[:, 0], rows[:, 1], s=1.5, c=colours)


if __name__ == "__main__":
    write_figure(FIGURE, figure(read(RESULTS), tidy.curves(RESULTS.with_suffix(".npz"))))
