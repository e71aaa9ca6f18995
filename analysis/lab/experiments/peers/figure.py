"""Distance from the exact posterior against core-seconds, a panel for each problem."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pyrodrop.analysis.lab.peers.processes import OURS, PEERS
from pyrodrop.analysis.lab.tidy import Row
from pyrodrop.analysis.reports.style import BLUE, GREY, RED, WHITE, styled


@styled()
def figure(rows: Sequence[Row]) -> Figure:
    """W2 of f over the exact posterior's standard deviation, or total variation if y are classes, by core-seconds.

    Args:
        rows: rows of the study ``peers``. Methods are shown by numbers, since names would overlap.
    """
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    methods = {row["method"] for row in rows if row.get("seconds") is not None and "fault" not in row}
    met = [name for name in PEERS if name in methods]
    columns = min(3, len(problems))
    lines = -(-len(problems) // columns)
    made = Figure(figsize=(4.3 * columns + 2.4, max(4.6, 3.7 * lines)), layout="constrained")
    for place, name in enumerate(problems):
        axes = made.add_subplot(lines, columns, place + 1)
        of_problem = {row["method"]: row for row in rows if row["problem"] == name}
        classes = of_problem["chance"].get("wasserstein") is None
        key = "total_variation" if classes else "wasserstein"
        for number, method in enumerate(met, 1):
            if of_problem.get(method, {}).get(key) is not None:
                at = of_problem[method]["seconds"], of_problem[method][key]
                axes.plot(*at, "o", ms=8, color=_color(method), mec=WHITE, mew=0.5)
                axes.annotate(str(number), at, ha="center", va="center_baseline", fontsize=5.5, color=WHITE)
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
