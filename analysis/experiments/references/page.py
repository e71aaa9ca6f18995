"""The section on distances of ``analysis/reference/README.md``, from the files in ``analysis/reference/posterior``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.experiments.references.posteriors import POSTERIORS
from pyrodrop.analysis.experiments.references.spreads import PLACES
from pyrodrop.analysis.experiments.references.stored import FOLDER, LEARNED, facts
from pyrodrop.analysis.reports import generated
from pyrodrop.zoo.exact import PROBLEMS

WORSE = 2.0  # standard errors
SUFFIX = " (learned)"  # of the name of a problem with a learned precision
Content = Mapping[str, Any]


def text(folder: Path = FOLDER) -> str:
    """Distances from the exact posterior, by problem and posterior, and scores of the exact posterior, in Markdown."""
    stored = {
        f"{name}{suffix}": facts(name, place)
        for place, suffix in ((folder, ""), (folder / LEARNED, SUFFIX))
        for name in PROBLEMS
        if (place / f"{name}.json").is_file()
    }
    return "\n".join(
        (
            "One fit (mean of five) / an ensemble of five; *chance* is between two independent sets of the exact "
            f"posterior's draws.{_learned(stored)}\n",
            "**W2 of f**, the Wasserstein-2 distance of f in the units of y (mnist: of logits), mean over test points:\n",
            _distances(stored, "wasserstein", "{:.3g}"),
            "**Spread of f over the exact posterior's**, median (lowest to highest) over points and fits / median of an "
            "ensemble of five: *at* training inputs, at midpoints *between* them that are far from all of them, and *away* "
            "at inputs three times as far from their mean (`analysis/experiments/references/places.py`). Below 1 a "
            "posterior is surer than the exact one:\n",
            _spreads(stored),
            "**Covariance of f between points**, relative Frobenius distance, 1 if f does not vary:\n",
            _distances(stored, "covariance", "{:.2f}"),
            "**What the exact posterior scores** on the test rows, beside a point estimate and the best of the approximate "
            "posteriors, ensembles included:\n",
            _scores(stored),
            f"{_worse(stored)}\n",
            "**Total variation of y**, mean over test points. Observation noise hides in it how f varies:\n",
            _distances(stored, "total_variation", "{:.3f}"),
        )
    )


def _distances(stored: Mapping[str, Content], column: str, form: str) -> str:
    rows = []
    for name, content in stored.items():
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


def _spreads(stored: Mapping[str, Content]) -> str:
    def ranged(ratio: Mapping[str, float | None]) -> str:
        median, lowest, highest = (_short(ratio[key]) for key in ("median", "lowest", "highest"))
        return median if lowest == highest else f"{median} ({lowest} to {highest})"

    rows = []
    for name, content in stored.items():
        ratios = content["spreads"]["places"]
        for place in PLACES:
            cells = (
                f"{ranged(ratios[posterior][place])} / {_short(ratios[f'ensemble {posterior}'][place]['median'])}"
                for posterior in POSTERIORS
            )
            rows.append([name, place, *cells, ranged(ratios["reference"][place])])
    return generated.table([["problem", "where", *POSTERIORS, "chance"], *rows]) + "\n"


def _scores(stored: Mapping[str, Content]) -> str:
    rows = []
    for name, content in _observed(stored).items():
        table, rows_of_fits, cells = content["table"], dict(content["table"]), [name]
        del rows_of_fits["reference"]
        for column, form, sign in (("log_density", "{:.3f}", 1), (_error(content), "{:.3g}", -1)):
            best = max(rows_of_fits, key=lambda fit: sign * table[fit][column])
            cells += [form.format(table[row][column]) for row in ("reference", "point", best)]
            cells[-1] += f" ({best})"
        rows.append(cells)
    head = [f"{score}: {of}" for score in ("log density", "RMSE or error") for of in ("exact", "point", "best")]
    return generated.table([["problem", *head], *rows]) + "\n"


def _worse(stored: Mapping[str, Content]) -> str:
    """Sentences on the problems in which the exact posterior predicts worse than a point estimate."""
    worse, better, larger = [], [], []
    for name, content in _observed(stored).items():
        point, exact = content["table"]["point"], content["table"]["reference"]
        worse += [name] * (point["to_reference"] > WORSE * point["to_reference_se"])
        better += [name] * (point["to_reference"] < -WORSE * point["to_reference_se"])
        larger += [name] * (exact[_error(content)] > point[_error(content)])
    return (
        "In log density, by more than two standard errors, the exact posterior is worse than a point estimate on "
        f"{_listed(worse)}, and better on {_listed(better)}; its RMSE or error is larger on {_listed(larger)}. It is the "
        "posterior of this prior and this noise, and not the best prediction: a posterior that is nearer to it may predict "
        "worse. foong has no observations to test."
    )


def _learned(stored: Mapping[str, Content]) -> str:
    """A sentence that explains rows with a learned precision; empty if there are none."""
    precision = {name: content["recipe"]["likelihood"].split("=")[-1].rstrip(")") for name, content in stored.items()}
    names = [name.removesuffix(SUFFIX) for name in stored if name.endswith(SUFFIX)]
    values = "; ".join(f"{name} {precision[name + SUFFIX]}, published {precision[name]}" for name in names)
    sentence = " In rows with *learned* the precision of the noise is the one that fits of mean field learn"
    return f"{sentence} ({values})." if values else ""


def _observed(stored: Mapping[str, Content]) -> dict[str, Content]:
    return {name: content for name, content in stored.items() if content["y"] is None}


def _error(content: Content) -> str:
    return "error" if "error" in content["table"]["reference"] else "rmse"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _short(value: float | None) -> str:
    """A ratio in two digits; a dash for None."""
    if value is None or 0 < value < 0.01:
        return "-" if value is None else "<0.01"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
