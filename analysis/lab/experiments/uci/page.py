"""The UCI tables of ``analysis/lab/results/README.md``, from the cells in ``uci.csv``.

They show Bernoulli dropout beside the published figures of the same splits, first by the protocol of 2018. For the other
posteriors they show paired differences of the log density from that of Bernoulli dropout with the same treatment of the
noise precision tau.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyrodrop.analysis.lab import generated
from pyrodrop.analysis.lab.experiments.uci.protocol import ALL, PROTOCOLS, RATES, SETTINGS
from pyrodrop.analysis.lab.experiments.uci.stored import cells
from pyrodrop.analysis.lab.experiments.uci.table import (
    BASE,
    METRICS,
    Cells,
    gains_of,
    pair,
    paired,
    treatment,
    z_score,
)
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.zoo.published import by_split


def reference(protocol: str) -> Cells:
    """Our cells of a protocol, by set and posterior, in the order of the sets."""
    return {(name, _column(cell["cell"])): cell for (name, _), cell in cells(protocol).items()}


def text(protocol: str) -> str:
    """Bernoulli dropout beside the published figures of a protocol, in Markdown."""
    ours = _bernoulli(protocol)
    splits = by_split(PROTOCOLS[protocol].published)
    header = ["set", "splits", "minutes"]
    rows = [[*header, *(word for title in METRICS.values() for word in (f"{title}, published", "ours", "z"))]]
    for name in (name for name in SETTINGS if name in ALL):
        cell, theirs = ours.get(name), splits[name]
        row = [name] + (["-", "-"] if cell is None else [str(len(cell["rmse"])), f"{cell['seconds'] / 60:.1f}"])
        for metric in METRICS:
            row.append(pair(*mean_and_error(theirs[metric])))
            if cell is None:
                row += ["not run", "-"]
            else:
                row += [pair(*mean_and_error(cell[metric])), f"{z_score(paired(cell[metric], theirs[metric])):+.1f}"]
        rows.append(row)
    return f"{generated.table(rows)}\n\n{generated.table(_lean(protocol, ours))}\n"


def _bernoulli(protocol: str) -> dict[str, Any]:
    return {name: cell for (name, guide), cell in reference(protocol).items() if guide == BASE}


def _lean(protocol: str, ours: Mapping[str, Any]) -> list[list[str]]:
    """The number of sets where ours is better and worse, with z of all sets together; positive is better."""
    splits, rows = (
        by_split(PROTOCOLS[protocol].published),
        [["ours", "better", "worse", "z, all sets", "largest \\|z\\|"]],
    )
    for (metric, title), sign in zip(METRICS.items(), (-1, 1), strict=True):
        z = [sign * (z_score(paired(cell[metric], splits[name][metric])) or 0) for name, cell in ours.items()]
        counts = (f"{sum(value > 0 for value in z)} of {len(z)}", f"{sum(value < 0 for value in z)} of {len(z)}")
        rows.append([title, *counts, f"{sum(z) / math.sqrt(len(z)):+.1f}", f"{max(map(abs, z)):.1f}"])
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _over_first(values: Sequence[Sequence[float]]) -> list[float]:
    """Means over the first axis."""
    return [_mean(each) for each in zip(*values, strict=True)]


def _gain_words(ours: Sequence[float], theirs: Sequence[float]) -> str:
    mean, error = paired(ours, theirs)
    return f"{mean:+.4f} ({mean / error:+.1f})" if error else f"{mean:+.4f}"


def validation() -> str:
    """The grid of 2018 before a point is chosen: log densities of the validation rows by drop rate, in Markdown."""
    splits = by_split("gal2018")
    rows = [["set", *(f"rate {rate:g}" for rate in RATES)]]
    z: list[list[float]] = []
    for name, cell in _bernoulli("gal2018").items():
        z.append([])
        rows.append([name])
        for rate in RATES:
            points = [number for number, point in enumerate(cell["points"]) if point["drop_rate"] == rate]
            values = (cell["validation"], splits[name]["validation"])
            ours, theirs = (_over_first([each[number] for number in points]) for each in values)
            z[-1].append(z_score(paired(ours, theirs)) or 0.0)
            rows[-1].append(_gain_words(ours, theirs))
    together = [f"z = {sum(values) / math.sqrt(len(values)):+.1f}" for values in zip(*z, strict=True)]
    return f"{generated.table([*rows, ['all sets together', *together]])}\n"


def posteriors() -> str:
    """Gains of other posteriors over Bernoulli dropout with the same treatment of tau, and of a noise that depends on x."""
    by_kind: dict[str, dict[tuple[str, str], Any]] = {}
    for (name, _), cell in reference("gal2016").items():
        by_kind.setdefault(treatment(cell), {})[name, cell["cell"]["guide"]] = cell
    base = {key: cell for key, cell in by_kind.get("learned", {}).items() if key[1] == BASE}
    of_x = {(name, f"{guide}, τ of x"): cell for (name, guide), cell in by_kind.get("of x", {}).items()}
    titles = {
        "τ learned by both": by_kind.get("learned", {}),
        "τ of x against τ learned": base | of_x,
        "τ fixed at the published value for both": by_kind.get("fixed", {}),
    }
    tables = [
        f"Log density less that of Bernoulli dropout, {title}, nats per point (z):\n\n{generated.table(rows)}"
        for title, compared in titles.items()
        if (rows := gains_of(compared))
    ]
    return "\n\n".join(tables) + "\n"


def _column(cell: Mapping[str, Any]) -> str:
    """The name of a posterior, with its noise if that is not its default."""
    return cell["guide"] + {"auto": "", "grid": ", τ as Bernoulli"}.get(cell["precision"], f", τ {cell['precision']}")
