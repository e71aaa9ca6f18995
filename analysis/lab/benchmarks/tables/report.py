"""Ranks and tables of the measured cells, for the page, and their figure.

    python -m pyrodrop.analysis.lab.benchmarks.tables.report        writes docs/_static/judged-tables.png

A method's score on a table is its mean over the folds that all methods have. Methods are ranked on every table; a method
that failed on a fold is last. The critical difference of two mean ranks, at 5 %, is that of the test of Nemenyi (1963):
Demšar (2006), Statistical Comparisons of Classifiers over Multiple Data Sets, section 3.2.2,
https://jmlr.org/papers/v7/demsar06a.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata, studentized_range

from pyrodrop.analysis.lab import ROOT, generated, tidy
from pyrodrop.analysis.lab.benchmarks.tables import methods
from pyrodrop.analysis.lab.benchmarks.tables.chosen import Half, Kind, chosen, names
from pyrodrop.analysis.reports.style import BLACK, BLUE, styled, write_figure

RESULTS = Path(__file__).parents[1] / "results" / "judged-tables.csv"
FIGURE = ROOT / "docs" / "_static" / "judged-tables.png"
OURS = "pyrodrop"
RANKED: Mapping[Kind, tuple[str, ...]] = {
    "regression": ("log_density", "crps", "interval"),
    "classification": ("log_density", "brier", "error"),
}
HEADERS = {
    "log_density": "log density", "crps": "CRPS", "interval": "interval score", "brier": "Brier score", "error": "error",
}  # fmt: skip
HALVES: Mapping[Half, str] = {
    "judging": "judged",
    "finding": "found",
    "later": "later",
}  # in names of parts of the page
Cells = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]


def read(file: Path) -> Cells:
    """The scores by table, fold and method."""
    cells: dict[str, dict[str, dict[str, tidy.Row]]] = {}
    for row in tidy.read(file):
        cells.setdefault(row["problem"], {}).setdefault(str(row["seed"]), {})[row["method"]] = tidy.scores(row)
    return cells


@dataclass(frozen=True)
class Judged:
    """The cells of a kind and half.

    Attributes:
        tables: the T tables with a fold that all methods have.
        methods: the M methods with a cell.
        folds: for every table, the cells of these folds by method.
    """

    tables: list[str]
    methods: list[str]
    folds: list[list[Mapping[str, Mapping[str, Any]]]]

    def score(self, name: str) -> np.ndarray:
        """The mean over folds, ``[T, M]``; NaN where a method failed."""
        of_folds = [
            [[fold[method].get(name, np.nan) for method in self.methods] for fold in folds] for folds in self.folds
        ]
        return np.array([np.mean(scores, 0) for scores in of_folds]).reshape(len(self.tables), len(self.methods))

    def ranks(self, name: str) -> np.ndarray:
        """The rank of every method on every table, ``[T, M]``; the best is 1, and equal methods share their mean rank."""
        loss = self.score(name) * (-1 if name == "log_density" else 1)
        return rankdata(np.where(np.isnan(loss), np.inf, loss), axis=1)  # type: ignore[no-any-return]

    @property
    def critical_difference(self) -> float:
        """The critical difference of two mean ranks, at 5 %."""
        m, t = len(self.methods), len(self.tables)
        return float(studentized_range.ppf(0.95, m, np.inf) / np.sqrt(2) * np.sqrt(m * (m + 1) / (6 * t)))


def judged(cells: Cells, kind: Kind, half: Half) -> Judged:
    """The cells of a kind and half."""
    every = methods.REGRESSIONS if kind == "regression" else methods.CLASSIFICATIONS
    of_half = [name for name in names(kind, half) if name in cells]
    present = [method for method in every if any(method in fold for name in of_half for fold in cells[name].values())]
    common = {
        name: [fold for fold in cells[name].values() if all(method in fold for method in present)] for name in of_half
    }
    tables = [name for name in of_half if common[name]]
    return Judged(tables, present, [common[name] for name in tables])


def part(kind: Kind, half: Half) -> str:
    """The part of the page for a kind and half, from the stored cells."""
    return text(read(RESULTS), kind, half)


def ranks(kind: Kind, half: Half) -> str:
    """The methods of a kind and half, from the stored cells: all of them together, without their tables."""
    return f"{_of_methods(judged(read(RESULTS), kind, half), kind)}\n"


def text(cells: Cells, kind: Kind, half: Half) -> str:
    """The methods of a kind and half, and then its tables, in Markdown."""
    of = judged(cells, kind, half)
    return f"{_of_methods(of, kind)}\n\n{_of_tables(of, kind)}\n"


def _of_methods(of: Judged, kind: Kind) -> str:
    """A row for each method: mean ranks, worst differences from simple methods, coverage and core-seconds."""
    ranks = {name: of.ranks(name) for name in RANKED[kind]}
    density, coverage = of.score("log_density"), of.score("coverage")
    seconds = [[fold[method].get("seconds", np.nan) for folds in of.folds for fold in folds] for method in of.methods]
    against = [name for name in ("ridge", "quantile forest", "logistic", "forest") if name in of.methods]
    sizes = [len(folds) for folds in of.folds]
    folds = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    header = [
        f"{len(of.tables)} tables, folds: {folds}",
        *(f"rank by {HEADERS[name]}" for name in ranks),
    ]
    header += [f"worst against {name}" for name in against]
    header += ["coverage 92 to 98 %"] * (kind == "regression") + ["core-seconds, median", "most"]
    rows = [header]
    for m, method in enumerate(of.methods):
        row = [f"**{method}**" if method == OURS else method]
        row += [f"{r[:, m].mean():.2f} ± {r[:, m].std(ddof=1) / np.sqrt(len(r)):.2f}" for r in ranks.values()]
        for name in against:
            off = density[:, m] - density[:, of.methods.index(name)]
            row.append("" if name == method else "failed" if np.isnan(off).any() else f"{off.min():+.2f}")
        if kind == "regression":
            row.append(f"{np.sum((coverage[:, m] >= 0.92) & (coverage[:, m] <= 0.98))}")
        rows.append([*row, f"{np.nanmedian(seconds[m]):.1f}", f"{np.nanmax(seconds[m]):.0f}"])
    return generated.table(
        [*rows, ["critical difference", *[f"{of.critical_difference:.2f}"] * 3, *[""] * (len(header) - 4)]]
    )


def _of_tables(of: Judged, kind: Kind) -> str:
    """A row for each table: log densities, the best in bold."""
    coverage = of.score("coverage")
    rows = [["table", "rows", "columns", *of.methods]]
    ours = of.methods.index(OURS) if OURS in of.methods and kind == "regression" else None
    if ours is not None:
        rows[0].append("95 % interval")
    for t, (name, scores) in enumerate(zip(of.tables, of.score("log_density"), strict=True)):
        best = np.nanmax(np.round(scores, 2))
        shown = ["failed" if np.isnan(score) else f"{score:.2f}" for score in scores]
        bold = [f"**{shown[m]}**" if round(score, 2) == best else shown[m] for m, score in enumerate(scores)]
        entry = chosen()[name]
        row = [name, str(entry.rows), str(entry.columns), *bold]
        rows.append(row if ours is None else [*row, f"{100 * coverage[t, ours]:.0f} %"])
    return generated.table(rows)


@styled()
def figure(cells: Cells) -> Figure:
    """Mean ranks of the regressions of both halves, with half of the critical difference to both sides."""
    panels: list[tuple[Half, str]] = [
        (half, name) for half in ("judging", "finding") for name in ("log_density", "crps")
    ]
    made = Figure(figsize=(7.2, 4.6), layout="constrained")
    for axes, (half, name) in zip(made.subplots(2, 2).flat, panels, strict=True):
        of = judged(cells, "regression", half)
        ranks = of.ranks(name).mean(0)
        order = np.argsort(-ranks)
        for place, m in enumerate(order):
            colour = BLUE if of.methods[m] == OURS else BLACK
            half_width = of.critical_difference / 2
            axes.errorbar(ranks[m], place, xerr=half_width, fmt="o", color=colour, markersize=4, capsize=2)
        axes.set_yticks(range(len(order)), [of.methods[m] for m in order])
        axes.set(xlim=(0.5, len(order) + 0.5), xlabel="mean rank")
        axes.set_title(f"{half}, {len(of.tables)} tables: {HEADERS[name]}")
    return made


if __name__ == "__main__":
    write_figure(FIGURE, figure(read(RESULTS)))
