"""The UCI table from its cells: our results next to the published ones, in Markdown and HTML.

    d = (ours - published) / sqrt(se_ours^2 + se_published^2)       in combined standard errors
    g = mean of (posterior - Bernoulli) over splits, and g / se_g   in paired standard errors

A standard error is the standard deviation over splits (dividing by n - 1) over the square root of n.
"""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from pyrodrop.analysis.experiments.uci.protocol import PROTOCOLS
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.terminal import paragraph, print_table
from pyrodrop.zoo.uci_published import PUBLISHED

METRICS = {"rmse": "RMSE", "log_density": "log density"}
BASE = "bernoulli"  # what other posteriors are compared with

Cells = Mapping[tuple[str, str], Mapping[str, Any]]  # by set and posterior


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error, None for a single value."""
    if len(values) < 2:
        return float(values[0]), None
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def distance(ours: tuple[float, float | None], published: tuple[float, float | None]) -> float | None:
    """The difference in combined standard errors; None if neither side has one."""
    error = math.hypot(ours[1] or 0.0, published[1] or 0.0)
    return None if error == 0 else (ours[0] - published[0]) / error


def rows_of(cells: Cells, metric: str, published: str) -> list[list[str]]:
    """The table of a metric: a header, then one row per data set. Missing cells are dashes."""
    names = list(dict.fromkeys(name for name, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    rows = [["set", "published", *columns]]
    for name in names:
        theirs = PUBLISHED[published].get(name)
        reference = None if theirs is None else getattr(theirs, metric)
        row = [name, "-" if reference is None else pair(*reference)]
        for column in columns:
            cell = cells.get((name, column))
            if cell is None:
                row.append("-")
                continue
            ours = mean_and_error(cell[metric])
            apart = None if reference is None else distance(ours, reference)
            row.append(pair(*ours) + ("" if apart is None else f" ({apart:+.1f})"))
        rows.append(row)
    return rows


def gains_of(cells: Cells) -> list[list[str]]:
    """Paired differences of log density between the other posteriors and Bernoulli; empty if there are none.

    A header, one row per data set, and the number of data sets with a gain of more than two standard errors.
    """
    columns = [column for column in dict.fromkeys(column for _, column in cells) if column != BASE]
    sets = [name for name in dict.fromkeys(name for name, _ in cells) if (name, BASE) in cells]
    found = {
        (name, column): _gain(cells[name, column]["log_density"], cells[name, BASE]["log_density"])
        for name in sets
        for column in columns
        if (name, column) in cells
    }
    if not any(found.values()):
        return []
    rows = [[name, *(_words(found.get((name, column))) for column in columns)] for name in sets]
    counts = []
    for column in columns:
        compared = [gain for (_, other), gain in found.items() if other == column and gain]
        counts.append(f"{sum(_better(gain) for gain in compared)} of {len(compared)}")
    return [["set", *columns], *(row for row in rows if any(row[1:])), ["better by two s.e.", *counts]]


def markdown(cells: Cells, published: str) -> str:
    """One table each for RMSE, log density, and its differences from Bernoulli."""
    parts = [f"### {title}\n\n{lines(rows)}" for title, rows in _tables(cells, published)]
    return "\n\n".join([*parts, _legend(published)]) + "\n"


def print_tables(cells: Cells, published: str) -> None:
    """Print the same tables."""
    for title, (header, *rows) in _tables(cells, published):
        table = Table(title=title)
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        print_table(table)
        print()
    paragraph(_legend(published))


def lines(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its header."""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body))


def results(cells: Cells, protocol: str) -> dict[str, Any]:
    """Everything as JSON: with one data set a row per posterior, with several a row per data set and posterior.

    Scores are means over splits, with their standard errors; published ones are those of MC dropout.
    """
    sets, columns = ([*dict.fromkeys(key[part] for key in cells)] for part in (0, 1))
    names = {key: key[1] if len(sets) == 1 else "/".join(key) for key in cells}
    scores = {names[key]: {metric: mean_and_error(cell[metric]) for metric in METRICS} for key, cell in cells.items()}
    theirs = PUBLISHED[PROTOCOLS[protocol].published]
    return {
        "models": {
            name: {metric: value for metric, (value, _) in row.items()} | {"seconds": cells[key]["seconds"]}
            for (key, name), row in zip(names.items(), scores.values(), strict=True)
        },
        "standard_errors": {name: {metric: error for metric, (_, error) in row.items()} for name, row in scores.items()},
        "published": {
            name: {metric: getattr(theirs[name], metric)[0] for metric in METRICS} for name in sets if name in theirs
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


def page(cells: Cells, published: str) -> str:
    """The tables as a self-contained HTML page."""
    parts = []
    for title, (header, *rows) in _tables(cells, published):
        head = "".join(f"<th>{html.escape(text)}</th>" for text in header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
        parts.append(f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    style = (
        "body{font:15px sans-serif;margin:2em}td,th{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>UCI regression</title><style>{style}</style>'
        f"<body><h1>UCI regression</h1>{''.join(parts)}<p>{html.escape(_legend(published))}</p></body></html>\n"
    )


def _tables(cells: Cells, published: str) -> list[tuple[str, list[list[str]]]]:
    tables = [(title, rows_of(cells, metric, published)) for metric, title in METRICS.items()]
    gains = gains_of(cells)
    return [*tables, (f"log density less that of {BASE} (in paired standard errors)", gains)] if gains else tables


Gain = tuple[float, float | None]  # of a posterior over Bernoulli: mean and standard error over splits


def _gain(ours: Sequence[float], base: Sequence[float]) -> Gain | None:
    """None if the splits are not the same."""
    return mean_and_error([a - b for a, b in zip(ours, base, strict=True)]) if len(ours) == len(base) else None


def _better(gain: Gain) -> bool:
    mean, error = gain
    return error is not None and mean > 2 * error


def _words(gain: Gain | None) -> str:
    if gain is None:
        return ""
    mean, error = gain
    return f"{mean:+.2f} ({mean / error:+.1f})" if error else f"{mean:+.2f}"


def _legend(published: str) -> str:
    return (
        "Mean over the published splits ± standard error, in raw units and nats; in brackets the difference from the "
        f"published MC dropout ({published}) in combined standard errors. RMSE: lower is better; log density: higher."
    )


def pair(value: float, error: float | None) -> str:
    """A number and its error with two digits of the error."""
    if error is None or error == 0:
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"
