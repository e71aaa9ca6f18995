"""The table of results by network, posterior and estimator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rich.table import Table

from pyrodrop.analysis.lab.networks.agreement import Result
from pyrodrop.analysis.lab.networks.case import Cell
from pyrodrop.analysis.lab.networks.posteriors import POSTERIORS
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.reparam import STRATEGIES

MARKS = {"right": "+", "fallback": "p", "other": "~", "refused": "-", "wrong": "X"}
_RANK = ("right", "fallback", "other", "refused", "wrong")
COLUMNS = ("predict", *STRATEGIES)
Found = Mapping[str, Mapping[Cell, Result]]  # by network


def column_of(cell: Cell) -> str:
    """The column of a cell: its estimator, or ``predict`` for checks of predictions and files."""
    return cell.estimator if cell.what in ("loss", "steps", "replicates", "plain") else "predict"


def table(results_of: Found) -> Table:
    """A table with one row per network and one column per posterior, with a mark for prediction and for each estimator.

    A mark is the worst result of its cells; refused cells count only if all are refused.
    """
    kinds = ", ".join(f"{mark} {kind}" for kind, mark in MARKS.items())
    rows = [["network", *POSTERIORS]] + [
        [name, *(" ".join(_mark(results, guide, column) for column in COLUMNS) for guide in POSTERIORS)]
        for name, results in results_of.items()
    ]
    return text_table(f"networks: {kinds}", rows, caption="marks: " + ", ".join(COLUMNS), left=len(rows[0]))


def _mark(results: Mapping[Cell, Result], guide: str, column: str) -> str:
    kinds = [r.kind for cell, r in results.items() if cell.guide == guide and column_of(cell) == column]
    if not kinds:
        return " "
    asked = [kind for kind in kinds if kind != "refused"] or kinds
    return MARKS[max(asked, key=_RANK.index)]


def notes(results_of: Found) -> Iterable[str]:
    """Every reason once, wrong results first, with the networks that it applies to."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, results in results_of.items():
        for cell, result in results.items():
            if result.kind != "right":
                reason = result.note if result.kind == "wrong" else re.split(r"; got |; use |: use ", result.note)[0]
                reasons.setdefault((result.kind, reason), {}).setdefault(name, []).append(str(cell))
    for (kind, reason), names in sorted(reasons.items(), key=lambda item: -_RANK.index(item[0][0])):
        of = [f"{name} ({', '.join(which)})" if kind == "wrong" else name for name, which in names.items()]
        shown = ", ".join(of[:6]) + (f" and {len(of) - 6} more" if len(of) > 6 else "")
        yield f"{kind}: {reason}: {shown}"
