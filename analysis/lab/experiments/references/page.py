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


def distances(column: str, form: str) -> str:
    """A distance from the exact posterior, by problem and posterior, in Markdown."""
    rows = []
    for name, content in stored().items():
        table = {
            posterior: "-" if row[column] is None else form.format(row[column])
            for posterior, row in content["table"].items()
        }
        rows.append(
            [
                name,
                *(f"{table[posterior]} / {table[f'ensemble {posterior}']}" for posterior in POSTERIORS),
                table["reference"],
            ]
        )
    return generated.table([["problem", *POSTERIORS, "chance"], *rows]) + "\n"


def spreads() -> str:
    """Spreads of f over the exact posterior's, by problem, place and posterior, in Markdown."""

    def ranged(ratio: Mapping[str, float | None]) -> str:
        median, lowest, highest = (_short(ratio[key]) for key in ("median", "lowest", "highest"))
        return median if lowest == highest else f"{median} ({lowest} to {highest})"

    rows = []
    for name, content in stored().items():
        ratios = content["spreads"]["places"]
        for place in PLACES:
            cells = (
                f"{ranged(ratios[posterior][place])} / {_short(ratios[f'ensemble {posterior}'][place]['median'])}"
                for posterior in POSTERIORS
            )
            rows.append([name, place, *cells, ranged(ratios["reference"][place])])
    return generated.table([["problem", "where", *POSTERIORS, "chance"], *rows]) + "\n"


def scores() -> str:
    """Scores of the exact posterior, of a point estimate and of the best approximation, in Markdown."""
    rows = []
    for name, content in stored().items():
        if content["y"] is not None:  # drawn
            continue
        table, rows_of_fits, cells = content["table"], dict(content["table"]), [name]
        del rows_of_fits["reference"]
        for column, form, sign in (("log_density", "{:.3f}", 1), (_error(content), "{:.3g}", -1)):
            best = max(rows_of_fits, key=lambda fit: sign * table[fit][column])
            cells += [form.format(table[row][column]) for row in ("reference", "point", best)]
            cells[-1] += f" ({best})"
        rows.append(cells)
    head = [f"{score}: {of}" for score in ("log density", "RMSE or error") for of in ("exact", "point", "best")]
    return generated.table([["problem", *head], *rows]) + "\n"


def _error(content: Content) -> str:
    return "error" if "error" in content["table"]["reference"] else "rmse"


def _short(value: float | None) -> str:
    """A ratio in two digits; a dash for None."""
    if value is None or 0 < value < 0.01:
        return "-" if value is None else "<0.01"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
