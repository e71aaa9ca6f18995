"""Distance from the exact posterior against core-seconds, a panel for each problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pyrodrop.analysis.experiments.peers.peers import OURS, PEERS
from pyrodrop.analysis.reports.style import BLUE, GREY, RED, styled


@styled()
def figure(problems: Mapping[str, Any]) -> Figure:
    """W2 of f over the exact posterior's standard deviation, or total variation where y are classes, by core-seconds."""
    columns = min(3, len(problems))
    rows = -(-len(problems) // columns)
    made = Figure(figsize=(max(6.5, 4.3 * columns), 3.7 * rows), layout="constrained")
    for place, (name, found) in enumerate(problems.items()):
        axes = made.add_subplot(rows, columns, place + 1)
        classes = found["chance"]["wasserstein"] is None
        key = "total_variation" if classes else "wasserstein"
        for peer, row in found["rows"].items():
            if "values" not in row:
                continue
            of = PEERS[peer]
            color = RED if of.package == OURS else BLUE
            at = row["about"]["seconds"], row["values"][key]
            axes.plot(*at, "o", ms=4, color=color, mfc="none" if of.differs else color)
            words = f"{of.package.split('-')[0]} {of.method}" if of.package != OURS else of.method
            axes.annotate(words, at, (3, 2), textcoords="offset points", fontsize=5.5, color=color)
        axes.axhline(found["chance"][key], color=GREY, lw=0.8, ls="--")
        axes.set(
            xscale="log", yscale="log", title=name, ylabel="total variation of y" if classes else "W2 of f / sd of f"
        )
        axes.margins(0.12)
    made.supxlabel("core-seconds")
    marks = [Line2D([], [], ls="", marker="o", ms=4, color=color) for color in (RED, BLUE)]
    dashes = Line2D([], [], color=GREY, lw=0.8, ls="--")
    made.legend(
        [*marks, dashes], ["pyrodrop", "other packages", "chance alone: halves of the reference's draws"],
        loc="outside upper center", ncols=3,
    )  # fmt: skip
    return made
