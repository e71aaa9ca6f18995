"""The section on distances of ``analysis/reference/README.md``, from the files in ``analysis/reference/posterior``.

``python -m pyrodrop.analysis.experiments.references.page`` writes it. A test checks that the page is up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.experiments.references.posteriors import POSTERIORS
from pyrodrop.analysis.experiments.references.spreads import PLACES
from pyrodrop.analysis.experiments.references.stored import FOLDER, LEARNED, facts
from pyrodrop.analysis.reports import generated
from pyrodrop.zoo.exact import PROBLEMS

WORSE = 2.0  # standard errors
Content = Mapping[str, Any]


def text(folder: Path = FOLDER) -> str:
    """Distances from the exact posterior, by problem and posterior, and what the exact posterior scores, in Markdown."""
    stored = {
        f"{name}{words}": facts(name, place)
        for place, words in ((folder, ""), (folder / LEARNED, ", learned"))
        for name in PROBLEMS
        if (place / f"{name}.json").is_file()
    }
    return "\n".join(
        (
            "One fit (mean of five) / an ensemble of five; *chance* is between two independent sets of the exact "
            "posterior's draws. Rows with *learned* have the precision of the noise that fits of mean field learn "
            f"({_precisions(stored)}) in place of the published one.\n",
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
    def row(content: Content) -> Iterable[str]:
        table = content["table"]
        for one in POSTERIORS:
            yield " / ".join(_number(table[name][column], form) for name in (one, f"ensemble {one}"))
        yield _number(table["reference"][column], form)

    return _table(["problem", *POSTERIORS, "chance"], ([name, *row(content)] for name, content in stored.items()))


def _spreads(stored: Mapping[str, Content]) -> str:
    def cell(places: Content, one: str, place: str) -> str:
        median, lowest, highest = (_short(places[one][place][key]) for key in ("median", "lowest", "highest"))
        single = median if lowest == highest else f"{median} ({lowest} to {highest})"
        return f"{single} / {_short(places[f'ensemble {one}'][place]['median'])}"

    def row(places: Content, place: str) -> Iterable[str]:
        chance = places["reference"][place]
        yield from (cell(places, one, place) for one in POSTERIORS)
        yield f"{_short(chance['median'])} ({_short(chance['lowest'])} to {_short(chance['highest'])})"

    rows = (
        [name, place, *row(content["spreads"]["places"], place)] for name, content in stored.items() for place in PLACES
    )
    return _table(["problem", "where", *POSTERIORS, "chance"], rows)


def _scores(stored: Mapping[str, Content]) -> str:
    rows = []
    for name, content in _observed(stored).items():
        table, error = content["table"], _error(content)
        others = [key for key in table if key != "reference"]
        cells = [name]
        for column, form, best in (("log_density", "{:.3f}", max), (error, "{:.3g}", min)):
            winner = best(others, key=lambda key: table[key][column])
            cells += [form.format(table[key][column]) for key in ("reference", "point", winner)]
            cells[-1] += f" ({winner})"
        rows.append(cells)
    head = [f"{score}: {of}" for score in ("log density", "RMSE or error") for of in ("exact", "point", "best")]
    return _table(["problem", *head], rows)


def _worse(stored: Mapping[str, Content]) -> str:
    """Where the exact posterior predicts worse than a point estimate, in words."""

    def names(found: Callable[[Content], bool]) -> str:
        return _listed([name for name, content in _observed(stored).items() if found(content)]) or "none"

    def point_is_better(content: Content, sign: int) -> bool:
        row = content["table"]["point"]
        return bool(sign * row["to_reference"] > WORSE * row["to_reference_se"])

    def smaller_error(content: Content) -> bool:
        return bool(content["table"]["point"][_error(content)] < content["table"]["reference"][_error(content)])

    return (
        "In log density, by more than two standard errors, the exact posterior is worse than a point estimate on "
        f"{names(lambda own: point_is_better(own, 1))}, and better on {names(lambda own: point_is_better(own, -1))}; its "
        f"RMSE or error is larger on {names(smaller_error)}. It is the posterior of this prior and this noise, and not "
        "the best prediction: a posterior that is nearer to it may predict worse. foong has no observations to test."
    )


def _precisions(stored: Mapping[str, Content]) -> str:
    found = []
    for name, content in stored.items():
        if content["learned_precisions"]:
            published, learned = (own["recipe"]["likelihood"] for own in (stored[name.split(",")[0]], content))
            found.append(f"{name.split(',')[0]} {_argument(learned)}, published {_argument(published)}")
    return "; ".join(found)


def _argument(likelihood: str) -> str:
    return f"{float(likelihood.split('=')[1].rstrip(')')):.3g}"


def _observed(stored: Mapping[str, Content]) -> dict[str, Content]:
    return {name: content for name, content in stored.items() if content["y"] is None}


def _error(content: Content) -> str:
    return "error" if "error" in content["table"]["reference"] else "rmse"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _short(value: float | None) -> str:
    """Two digits."""
    if value is None:
        return "-"
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    generated.put(generated.REFERENCES, "references", text())
