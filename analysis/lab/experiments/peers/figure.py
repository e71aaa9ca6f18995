"""Distance from the exact posterior against core-seconds, a panel for each problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pyrodrop.analysis.lab.peers.processes import OURS, PEERS
from pyrodrop.analysis.reports.style import BLUE, GREY, RED, WHITE, styled


@styled()
def figure(problems: Mapping[str, Any]) -> Figure:
    """W2 of f over the exact posterior's standard deviation, or total variation if y are classes, by core-seconds.

    Methods are shown by numbers, since names would overlap.
    """
    columns = min(3, len(problems))
    rows = -(-len(problems) // columns)
    made = Figure(figsize=(4.3 * columns + 2.4, max(4.6, 3.7 * rows)), layout="constrained")
    met = [
        name for name in PEERS if any("values" in of_problem["rows"].get(name, {}) for of_problem in problems.values())
    ]
    for place, (name, of_problem) in enumerate(problems.items()):
        axes = made.add_subplot(rows, columns, place + 1)
        classes = of_problem["chance"]["wasserstein"] is None
        key = "total_variation" if classes else "wasserstein"
        for peer, row in of_problem["rows"].items():
            if "values" in row:
                at = row["about"]["seconds"], row["values"][key]
                axes.plot(*at, "o", ms=8, color=_color(peer), mec=WHITE, mew=0.5)
                axes.annotate(
                    str(met.index(peer) + 1), at, ha="center", va="center_baseline", fontsize=5.5, color=WHITE
                )
        axes.axhline(of_problem["chance"][key], color=GREY, lw=0.8, ls="--")
        axes.set(
            xscale="log", yscale="log", title=name, ylabel="total variation of y" if classes else "W2 of f / sd of f"
        )
        axes.margins(0.12)
    made.supxlabel("core-seconds")
    marks = [Line2D([], [], ls="", marker="o", ms=6, color=_color(peer)) for peer in met]
    names = [f"{n}  {peer}{' *' * bool(PEERS[peer].differs)}" for n, peer in enumerate(met, 1)]
    dashes = Line2D([], [], color=GREY, lw=0.8, ls="--")
    made.legend([*marks, dashes], [*names, "chance: halves of the reference"], loc="outside right center", fontsize=7)
    return made


def _color(peer: str) -> str:
    return RED if PEERS[peer].package == OURS else BLUE
