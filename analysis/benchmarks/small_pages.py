"""The tables and the figure of the twenty small problems, from their stored results.

python -m pyrodrop.analysis.benchmarks.small_pages        writes docs/_static/twenty-problems.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrodrop.analysis.benchmarks.small_fits import GUIDES, SETTINGS, SIDE, STUDIED, points
from pyrodrop.analysis.benchmarks.small_problems import Problem, problem
from pyrodrop.analysis.reports import generated
from pyrodrop.analysis.reports.style import BLACK, BLUE, RED, SEQUENTIAL, SERIES, styled, write_figure
from pyrodrop.json_files import read_record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results") / "small-problems.json"
FIGURE = ROOT / "docs" / "_static" / "twenty-problems.png"
CLOSE = 0.15  # nats per row
_PANEL = (1.45, 1.15)  # inches
Cells = Mapping[str, Any]


def text(problems: Mapping[str, Cells], setting: str) -> str:
    """The table of a setting in Markdown: log densities inside / away, and how many are close to the exact posterior's."""
    methods = [f"{setting}: {method}" for method in SETTINGS[setting]]
    columns = ["GP", f"{setting}: exact", *(method for method in methods if not method.endswith("exact"))]
    lines = [["problem", "rows", "constant", *(name.split(": ")[-1] for name in columns)]]
    of_setting = {name: cells for name, cells in problems.items() if f"{setting}: exact" in cells}
    for name, cells in of_setting.items():
        lines.append([name, str(cells["rows"]), *(_scores(cells.get(column)) for column in ("constant", *columns))])
    for title, count in (
        (f"within {CLOSE} of exact", lambda cells, column: cells[column]["inside"] > exact(cells)["inside"] - CLOSE),
        ("below a constant", lambda cells, column: cells[column]["inside"] < cells["constant"]["inside"]),
    ):

        def exact(cells: Cells) -> Any:
            return cells[f"{setting}: exact"]

        counts = [str(sum(count(c, column) for c in of_setting.values() if column in c)) for column in columns[2:]]
        lines.append([f"{title}, of {len(of_setting)}", "", "", "", "", *counts])
    return generated.table(lines) + "\n"


def noise_text(problems: Mapping[str, Cells]) -> str:
    """How the noise is chosen: the median over problems of the log density inside less the exact posterior's, and counts."""
    lines = [["noise", *(f"{guide}" for guide in STUDIED)]]
    for setting in SETTINGS:
        row = []
        for guide in STUDIED:
            prior = "default" if setting.startswith("default") else "from gp"
            met = [cells for cells in problems.values() if {f"{setting}: {guide}", f"{prior}: exact"} <= set(cells)]
            met = [cells for cells in met if "noise_sd" in cells[f"{setting}: {guide}"]]
            off = [cells[f"{setting}: {guide}"]["inside"] - cells[f"{prior}: exact"]["inside"] for cells in met]
            below = sum(cells[f"{setting}: {guide}"]["inside"] < cells["constant"]["inside"] for cells in met)
            row.append(f"{np.median(off):+.2f} ({sum(o > -CLOSE for o in off)}, {below})" if off else "")
        lines.append([f"{setting} ({len(met)})", *row])
    return generated.table(lines) + "\n"


def _scores(cell: Any) -> str:
    return f"{cell['inside']:.2f} / {cell['away']:.2f}" if cell else ""


@styled()
def figure(problems: Mapping[str, Cells]) -> Figure:
    """A row for each problem: a Gaussian process, the exact posterior, and the guides, with the priors of `priors.from_gp`
    or, where there are none, with N(0, 1): mean and two standard deviations of y by x, or a map of the standard deviation or
    the entropy of y."""
    methods = ["GP", "exact", *GUIDES]
    made = Figure(figsize=(len(methods) * _PANEL[0], len(problems) * _PANEL[1]), layout="constrained")
    panels = made.subplots(len(problems), len(methods), squeeze=False, sharey="row")
    for row, (name, cells) in zip(panels, problems.items(), strict=True):
        of = problem(name)
        prior = "from gp" if "from gp: exact" in cells else "default"
        shown = [cells[method] if method == "GP" else cells.get(f"{prior}: {method}", {}) for method in methods]
        most = max(max(_numbers(cell["sd"])) for cell in shown if cell)
        for axes, cell in zip(row, shown, strict=True):
            axes.set(xticks=[], yticks=[])
            if cell:
                _draw(axes, of, np.array(_numbers(cell["mean"])), np.array(_numbers(cell["sd"])), most)
                axes.set_xlabel(f"{cell['inside']:.2f} / {cell['away']:.2f}", fontsize=6, labelpad=1)
            else:
                axes.axis("off")
        row[0].set_ylabel(name, fontsize=7)
    for axes, method in zip(panels[0], methods, strict=True):
        axes.set_title(method, fontsize=8)
    return made


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split()]


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
    write_figure(FIGURE, figure(read_record(RESULTS).content["problems"]))
