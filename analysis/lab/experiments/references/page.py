"""The section on distances of ``analysis/lab/results/README.md``, from the files in ``analysis/lab/results/posterior``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyrodrop.analysis.lab import generated
from pyrodrop.analysis.lab.experiments.references.posteriors import POSTERIORS
from pyrodrop.analysis.lab.experiments.references.spreads import PLACES
from pyrodrop.analysis.lab.experiments.references.stored import FOLDER, LEARNED, facts
from pyrodrop.zoo.exact import PROBLEMS

SUFFIX = " (learned)"  # of the name of a problem with a learned precision
Content = Mapping[str, Any]


def stored() -> dict[str, Content]:
    """The stored facts of every problem, also with a learned precision."""
    return {
        f"{name}{suffix}": facts(name, place)
        for place, suffix in ((FOLDER, ""), (FOLDER / LEARNED, SUFFIX))
        for name in PROBLEMS
        if (place / f"{name}.json").is_file()
    }


def _table(content: Content) -> dict[str, Mapping[str, Any]]:
    """The rows of a problem by method, without those of single fits."""
    return {row["method"]: row for row in content["rows"] if "seed" not in row}


def distances(column: str, form: str) -> str:
    """A distance from the exact posterior, by problem and posterior, in Markdown."""
    rows = [["problem", *POSTERIORS, "chance"]]
    for name, content in stored().items():
        shown = {method: form.format(row[column]) if column in row else "-" for method, row in _table(content).items()}
        rows.append([name, *(f"{shown[p]} / {shown[f'ensemble {p}']}" for p in POSTERIORS), shown["reference"]])
    return generated.table(rows) + "\n"


def spreads() -> str:
    """Spreads of f over the exact posterior's, by problem, place and posterior, in Markdown."""

    def ranged(row: Mapping[str, float], place: str) -> str:
        median, lowest, highest = (_short(row.get(f"{place}{end}")) for end in ("", " lowest", " highest"))
        return median if lowest == highest else f"{median} ({lowest} to {highest})"

    rows = [["problem", "where", *POSTERIORS, "chance"]]
    for name, content in stored().items():
        table = _table(content)
        for place in PLACES:
            cells = (f"{ranged(table[p], place)} / {_short(table[f'ensemble {p}'].get(place))}" for p in POSTERIORS)
            rows.append([name, place, *cells, ranged(table["reference"], place)])
    return generated.table(rows) + "\n"


def scores() -> str:
    """Scores of the exact posterior, of a point estimate and of the best approximation, in Markdown."""
    head = [f"{score}: {of}" for score in ("log density", "RMSE or error") for of in ("exact", "point", "best")]
    rows = [["problem", *head]]
    for name, content in stored().items():
        if content["y"] is not None:  # drawn
            continue
        table = _table(content)
        error = "error" if "error" in table["reference"] else "rmse"
        rows.append([name])
        for column, form, sign in (("log_density", "{:.3f}", 1), (error, "{:.3g}", -1)):
            best = max((m for m in table if m != "reference"), key=lambda method: sign * table[method][column])
            rows[-1] += [form.format(table[method][column]) for method in ("reference", "point", best)]
            rows[-1][-1] += f" ({best})"
    return generated.table(rows) + "\n"


def _short(value: float | None) -> str:
    """A ratio in two digits; a dash for None."""
    if value is None or 0 < value < 0.01:
        return "-" if value is None else "<0.01"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
