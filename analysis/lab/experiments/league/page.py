"""Tables and figure of ``docs/league.md`` and of the results; ``python -m ...league.page FILE.png`` draws it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection
from pathlib import Path

from matplotlib.figure import Figure

from pyrodrop.analysis.lab import generated
from pyrodrop.analysis.lab.experiments.league.rows import chance, league
from pyrodrop.analysis.reports.score_table import cell
from pyrodrop.analysis.reports.style import GREY, SERIES, styled, write_figure
from pyrodrop.zoo.exact import PROBLEMS

FORMS = {"wasserstein": ".2f", "away": ".2f", "total_variation": ".3f"}
MOST = 20.0  # end of the figure's axis; larger values are drawn there


MAIN = ("numpyro, NUTS", "blackjax, MCLMC", "pyrodrop, sample", "pyrodrop, exact last layer", "laplace-torch, last layer",
        "numpyro, AutoNormal", "posteriors, VI", "bayesian-torch, VI", "ivon-opt, IVON", "ensemble mean field", "mean field",
        "ensemble MC dropout .05", "MC dropout .05", "ensemble point", "point")  # fmt: skip
"""Methods of the page: one of each package and, single and as ensembles, those of this package that others have, too."""


def text(column: str, shown: Collection[str] | None = None) -> str:
    """A column of all problems, in Markdown: methods by their median W2 over problems; only those `shown`, if given."""
    rows = [["method", *PROBLEMS]]
    for method in [each for each in methods() if shown is None or each in shown]:
        values = [_cell(column, league(name).get(method, {})) for name in PROBLEMS]
        if set(values) != {"-"}:
            rows.append([method, *values])
    if column != "away":
        rows.append(["*chance*", *(cell(chance(name)[column], FORMS[column]) for name in PROBLEMS)])
    return generated.table(rows) + "\n"


def methods() -> list[str]:
    """All methods in ascending order of the median W2 over their problems."""
    distance: dict[str, list[float]] = {}
    for name in PROBLEMS:
        for method, row in league(name).items():
            distance.setdefault(method, []).append(row["wasserstein"] or 0.0)
    return sorted(distance, key=lambda method: statistics.median(distance[method]))


def _cell(column: str, row: dict[str, float | None]) -> str:
    """A number, and for W2 of single fits its standard error."""
    error = row.get("wasserstein se") if column == "wasserstein" else None
    return cell(row.get(column), FORMS[column]) + (f" ± {error:.2f}" if error is not None else "")


@styled()
def figure() -> Figure:
    """W2 of every method over that of chance, by problem."""
    order = methods()[::-1]
    made = Figure(figsize=(8, 0.2 * len(order) + 1), layout="constrained")
    axes = made.add_subplot()
    axes.axvline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    for (name, color), marker in zip(zip(PROBLEMS, SERIES, strict=False), "osD^vP", strict=True):
        rows, least = league(name), chance(name)["wasserstein"]
        at = [(min(MOST, rows[m]["wasserstein"] / least), y) for y, m in enumerate(order) if m in rows]  # type: ignore[operator]
        axes.plot(*zip(*at, strict=True), marker, color=color, markersize=4.5, label=name, alpha=0.85)
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.set(
        xscale="log", xlabel="W2 of f over that between two halves of the exact draws", ylim=(-0.7, len(order) - 0.3)
    )
    axes.set_xticks([1, 2, 5, 10, MOST], ["1", "2", "5", "10", "20+"])
    axes.grid(axis="y", linewidth=0.3)
    made.legend(loc="outside upper center", ncols=6, fontsize=8)
    return made


if __name__ == "__main__":
    write_figure(Path(sys.argv[1]), figure())
