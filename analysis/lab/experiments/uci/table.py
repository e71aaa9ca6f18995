"""The UCI table: our results next to the published ones, in the terminal and in ``analysis/lab/results/README.md``.

    d = mean of (ours - published) over splits, and z = d / se_d
    g = mean of (posterior - Bernoulli) over splits, and z = g / se_g

A standard error is the standard deviation over splits (dividing by n - 1) over the square root of n. Tables name the
treatment of the noise precision tau: fixed at the published value, searched on validation rows, learned, or a function of x.
The stored cells are in ``uci.csv``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyrodrop.analysis.lab import RESULTS, generated
from pyrodrop.analysis.lab.experiments.uci import cell as uci_cell
from pyrodrop.analysis.lab.experiments.uci.protocol import ALL, PROTOCOLS, SETTINGS
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.reports.terminal import paragraph, print_table, text_table
from pyrodrop.analysis.zoo.published import by_split

METRICS = {"rmse": "RMSE", "log_density": "log density"}
BASE = "bernoulli"  # the posterior that others are compared with
STORED = RESULTS / "uci.csv"

Cells = Mapping[tuple[str, str], Mapping[str, Any]]  # by set and posterior
Gain = tuple[float, float | None]  # mean of the differences over splits, and its standard error
cells = functools.partial(uci_cell.cells, path=STORED)


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
    settings: uci_cell.Cell = cell["settings"]
    searched = PROTOCOLS[settings.protocol].searches
    return {"grid": "searched" if searched else "fixed", "heteroscedastic": "of x"}.get(settings.noise, settings.noise)


def rows_of(cells: Cells, metric: str, published: str) -> list[list[str]]:
    """The table of a metric: a header, then one row per data set. Missing cells are dashes."""
    splits, (names, columns) = by_split(published), _axes(cells)
    rows = [["set", "published", *columns]]
    for name in names:
        reference = published_score(published, name, metric)
        rows.append([name, "-" if reference is None else pair(*reference)])
        for column in columns:
            cell = cells.get((name, column))
            z = z_score(paired(cell[metric], splits[name][metric])) if cell and name in splits else None
            text = pair(*mean_and_error(cell[metric])) if cell else "-"
            rows[-1].append(text + ("" if z is None else f" ({z:+.1f})"))
    return rows


def _axes(cells: Cells) -> tuple[list[str], list[str]]:
    return [*dict.fromkeys(name for name, _ in cells)], [*dict.fromkeys(column for _, column in cells)]


def gains_of(cells: Cells) -> list[list[str]]:
    """Paired differences of log density between the other posteriors and Bernoulli; empty if there are none.

    A header, one row per data set, and the numbers of data sets with gains and losses of more than two standard errors.
    """
    names, columns = _axes(cells)
    densities = {key: cell["log_density"] for key, cell in cells.items()}
    gains = {
        (name, column): paired(values, base)
        for (name, column), values in densities.items()
        if column != BASE and (base := densities.get((name, BASE))) and len(values) == len(base)
    }
    if not gains:
        return []
    columns = [column for column in columns if column != BASE]
    rows = [[name, *(_gain(gains.get((name, c)), ".2f") for c in columns)] for name in names if (name, BASE) in cells]
    counts = []
    for sign, title in ((1, "better by two s.e."), (-1, "worse by two s.e.")):
        z = {c: [z_score(gain) for (_, other), gain in gains.items() if other == c] for c in columns}
        counts.append(
            [title, *(f"{sum(v is not None and sign * v > 2 for v in z[c])} of {len(z[c])}" for c in columns)]
        )
    return [["set", *columns], *(row for row in rows if any(row[1:])), *counts]


def print_tables(cells: Cells, published: str) -> None:
    """Print one table each for RMSE, log density, and its differences from Bernoulli; a header has the treatment of τ."""
    tables = [(title, rows_of(cells, metric, published)) for metric, title in METRICS.items()]
    tables.append((f"log density less that of {BASE} (in standard errors of the paired differences)", gains_of(cells)))
    kinds: dict[str, dict[str, None]] = {}
    for (_, column), cell in cells.items():
        kinds.setdefault(column, {})[treatment(cell)] = None
    headings = {column: f"{column}, τ {' or '.join(each)}" for column, each in kinds.items()}
    for title, rows in tables:
        if rows:
            print_table(text_table(title, [[headings.get(word, word) for word in rows[0]], *rows[1:]]))
    paragraph(
        f"Means over splits ± standard error; in brackets z of the paired difference from the published ones ({published})."
    )


def results(cells: Cells, protocol: str) -> dict[str, Any]:
    """Means over splits, their standard errors and the published ones of MC dropout, by name of a set and posterior."""
    sets, columns = _axes(cells)
    names = {key: key[1] if len(sets) == 1 else "/".join(key) for key in cells}
    theirs = {
        name: {m: score[0] for m in METRICS if (score := published_score(PROTOCOLS[protocol].published, name, m))}
        for name in sets
    }
    scores = {names[key]: {m: mean_and_error(cell[m]) for m in METRICS} for key, cell in cells.items()}
    return {
        "models": {
            names[key]: {m: value for m, (value, _) in scores[names[key]].items()} | {"seconds": cell["seconds"]}
            for key, cell in cells.items()
        },
        "standard_errors": {name: {m: error for m, (_, error) in row.items()} for name, row in scores.items()},
        "published": {name: row for name, row in theirs.items() if row},
        "settings": {"data": f"UCI {', '.join(sets)}", "protocol": protocol, "posteriors": ", ".join(columns)},
    }


def text(protocol: str) -> str:
    """Bernoulli dropout beside the published figures of a protocol, and how many sets are better and worse, in Markdown."""
    ours, splits = _bernoulli(protocol), by_split(PROTOCOLS[protocol].published)
    heads = (word for title in METRICS.values() for word in (f"{title}, published", "ours", "z"))
    rows = [["set", "splits", "minutes", *heads]]
    for name in (name for name in SETTINGS if name in ALL):
        cell = ours.get(name)
        rows.append([name] + (["-", "-"] if cell is None else [str(len(cell["rmse"])), f"{cell['seconds'] / 60:.1f}"]))
        for metric in METRICS:
            theirs = splits[name][metric]
            rows[-1].append(pair(*mean_and_error(theirs)))
            z = None if cell is None else z_score(paired(cell[metric], theirs))
            rows[-1] += ["not run", "-"] if cell is None else [pair(*mean_and_error(cell[metric])), f"{z:+.1f}"]
    lean = [["ours", "better", "worse", "z, all sets", "largest \\|z\\|"]]
    for (metric, title), sign in zip(METRICS.items(), (-1, 1), strict=True):
        z_of = [sign * (z_score(paired(cell[metric], splits[name][metric])) or 0) for name, cell in ours.items()]
        counts = (
            f"{sum(value > 0 for value in z_of)} of {len(z_of)}",
            f"{sum(value < 0 for value in z_of)} of {len(z_of)}",
        )
        lean.append([title, *counts, _together(z_of), f"{max(map(abs, z_of)):.1f}"])
    return f"{generated.table(rows)}\n\n{generated.table(lean)}\n"


def posteriors() -> str:
    """Gains of other posteriors over Bernoulli dropout with the same treatment of tau, and of a noise that depends on x."""
    by_kind: dict[str, dict[tuple[str, str], Any]] = {}
    for (name, _), cell in cells("gal2016").items():
        by_kind.setdefault(treatment(cell), {})[name, cell["settings"].guide] = cell
    learned = by_kind.get("learned", {})
    base = {key: cell for key, cell in learned.items() if key[1] == BASE}
    of_x = {(name, f"{guide}, τ of x"): cell for (name, guide), cell in by_kind.get("of x", {}).items()}
    titles = {
        "τ learned by both": learned,
        "τ of x against τ learned": base | of_x,
        "τ fixed at the published value for both": by_kind.get("fixed", {}),
    }
    tables = [
        f"Log density less that of Bernoulli dropout, {title}, nats per point (z):\n\n{generated.table(rows)}"
        for title, compared in titles.items()
        if (rows := gains_of(compared))
    ]
    return "\n\n".join(tables) + "\n"


def _bernoulli(protocol: str) -> dict[str, Any]:
    return {name: cell for (name, method), cell in cells(protocol).items() if method == BASE}


def _together(z: Iterable[float]) -> str:
    """z of all sets together."""
    values = list(z)
    return f"{sum(values) / math.sqrt(len(values)):+.1f}"


def _gain(gain: Gain | None, form: str) -> str:
    """A difference with z in brackets."""
    if gain is None:
        return ""
    z = z_score(gain)
    return f"{gain[0]:+{form}}" + ("" if z is None else f" ({z:+.1f})")


def pair(value: float, error: float | None) -> str:
    """A number and its error with two digits of the error."""
    if error is None or error == 0:
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"
