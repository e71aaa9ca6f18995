"""The UCI table from its cells: our results next to the published ones.

    d = mean of (ours - published) over splits, and z = d / se_d
    g = mean of (posterior - Bernoulli) over splits, and z = g / se_g

A standard error is the standard deviation over splits (dividing by n - 1) over the square root of n. Tables name the
treatment of the noise precision tau: fixed at the published value, searched on validation rows, learned, or a function of x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyrodrop.analysis.lab.experiments.uci.protocol import PROTOCOLS
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.reports.terminal import paragraph, print_table, text_table
from pyrodrop.analysis.zoo.published import by_split
from pyrodrop.zoo.uci import SETTINGS

METRICS = {"rmse": "RMSE", "log_density": "log density"}
BASE = "bernoulli"  # the posterior that others are compared with

Cells = Mapping[tuple[str, str], Mapping[str, Any]]  # by set and posterior
Gain = tuple[float, float | None]  # mean of the differences over splits, and its standard error


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Gain:
    """Mean difference over the splits of `ours`, which are the first ones of `theirs`, and its standard error."""
    return mean_and_error([a - b for a, b in zip(ours, theirs, strict=False)])


def z_score(gain: Gain) -> float | None:
    """A mean difference in standard errors; None if the error is 0 or unknown."""
    mean, error = gain
    return mean / error if error else None


def published_score(published: str, name: str, metric: str) -> Gain | None:
    """Mean over the published splits and its standard error; None if the set is not among them."""
    splits = by_split(published).get(name)
    if splits is not None:
        return mean_and_error(splits[metric])
    return getattr(SETTINGS[name], metric) if published == "gal2016" else None


def treatment(cell: Mapping[str, Any]) -> str:
    """The treatment of tau in a cell: fixed, searched, learned, or of x."""
    kind = cell["plan"]["precision"]
    if kind == "grid":
        return "searched" if PROTOCOLS[cell["cell"]["protocol"]].searches else "fixed"
    return {"heteroscedastic": "of x"}.get(kind, kind)


def rows_of(cells: Cells, metric: str, published: str) -> list[list[str]]:
    """The table of a metric: a header, then one row per data set. Missing cells are dashes."""
    splits = by_split(published)
    names = list(dict.fromkeys(name for name, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    rows = [["set", "published", *columns]]
    for name in names:
        reference = published_score(published, name, metric)
        row = [name, "-" if reference is None else pair(*reference)]
        for column in columns:
            cell = cells.get((name, column))
            if cell is None:
                row.append("-")
                continue
            z = z_score(paired(cell[metric], splits[name][metric])) if name in splits else None
            row.append(pair(*mean_and_error(cell[metric])) + ("" if z is None else f" ({z:+.1f})"))
        rows.append(row)
    return rows


def gains_of(cells: Cells) -> list[list[str]]:
    """Paired differences of log density between the other posteriors and Bernoulli; empty if there are none.

    A header, one row per data set, and the numbers of data sets with gains and losses of more than two standard errors.
    """
    columns = [column for column in dict.fromkeys(column for _, column in cells) if column != BASE]
    sets = [name for name in dict.fromkeys(name for name, _ in cells) if (name, BASE) in cells]
    gains = {
        (name, column): _gain(cells[name, column]["log_density"], cells[name, BASE]["log_density"])
        for name in sets
        for column in columns
        if (name, column) in cells
    }
    if not any(gains.values()):
        return []
    rows = [[name, *(_gain_in_words(gains.get((name, column))) for column in columns)] for name in sets]
    counts = []
    for sign, title in ((1, "better by two s.e."), (-1, "worse by two s.e.")):
        counts.append([title])
        for column in columns:
            compared = [z_score(gain) for (_, other), gain in gains.items() if other == column and gain]
            counts[-1].append(f"{sum(z is not None and sign * z > 2 for z in compared)} of {len(compared)}")
    return [["set", *columns], *(row for row in rows if any(row[1:])), *counts]


def print_tables(cells: Cells, published: str) -> None:
    """Print one table each for RMSE, log density, and its differences from Bernoulli."""
    for title, rows in _tables(cells, published):
        print_table(text_table(title, rows))
        print()
    paragraph(
        "Mean over the published splits ± standard error, in raw units and nats; in brackets the paired difference from the "
        f"published MC dropout ({published}) of the same splits in its standard errors. RMSE: lower is better; log density: "
        "higher. Posteriors that treat τ differently differ in more than the posterior."
    )


def results(cells: Cells, protocol: str) -> dict[str, Any]:
    """All results as JSON: a row per posterior if there is one data set, else a row per data set and posterior.

    Scores are means over splits, with their standard errors; published ones are those of MC dropout.
    """
    sets, columns = ([*dict.fromkeys(key[place] for key in cells)] for place in (0, 1))
    names = {key: key[1] if len(sets) == 1 else "/".join(key) for key in cells}
    scores = {names[key]: {metric: mean_and_error(cell[metric]) for metric in METRICS} for key, cell in cells.items()}
    theirs = {
        (name, metric): score
        for name in sets
        for metric in METRICS
        if (score := published_score(PROTOCOLS[protocol].published, name, metric)) is not None
    }
    return {
        "models": {
            name: {metric: value for metric, (value, _) in row.items()} | {"seconds": cells[key]["seconds"]}
            for (key, name), row in zip(names.items(), scores.values(), strict=True)
        },
        "standard_errors": {name: {metric: error for metric, (_, error) in row.items()} for name, row in scores.items()},
        "published": {
            name: {metric: theirs[name, metric][0] for metric in METRICS} for name in sets if (name, "rmse") in theirs
        },
        "data_of_models": {
            names[key]: f"UCI {key[0]}, {len(cell['rmse'])} splits" for key, cell in cells.items()
        },
        "settings": {
            "data": f"UCI {', '.join(sets)}", "protocol": protocol, "posteriors": ", ".join(columns),
            "seeds": sorted({cell["cell"]["seed"] for cell in cells.values()}),
        },
        "versions": versions(),
    }  # fmt: skip


def _tables(cells: Cells, published: str) -> list[tuple[str, list[list[str]]]]:
    """Title and rows of every table; the header names each posterior's treatment of tau."""
    tables = [(title, rows_of(cells, metric, published)) for metric, title in METRICS.items()]
    if gains := gains_of(cells):
        tables.append((f"log density less that of {BASE} (in standard errors of the paired differences)", gains))
    kinds: dict[str, dict[str, None]] = {}
    for (_, column), cell in cells.items():
        kinds.setdefault(column, {})[treatment(cell)] = None
    headings = {column: f"{column}, τ {' or '.join(each)}" for column, each in kinds.items()}
    return [(title, [[headings.get(word, word) for word in rows[0]], *rows[1:]]) for title, rows in tables]


def _gain(ours: Sequence[float], base: Sequence[float]) -> Gain | None:
    """The paired difference; None if the numbers of splits differ."""
    return paired(ours, base) if len(ours) == len(base) else None


def _gain_in_words(gain: Gain | None) -> str:
    if gain is None:
        return ""
    z = z_score(gain)
    return f"{gain[0]:+.2f}" + ("" if z is None else f" ({z:+.1f})")


def pair(value: float, error: float | None) -> str:
    """A number and its error with two digits of the error."""
    if error is None or error == 0:
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"
