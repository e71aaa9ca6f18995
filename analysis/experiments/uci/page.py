"""The UCI tables of ``analysis/reference/README.md``, from the cells in ``analysis/reference/uci``.

``python -m pyrodrop.analysis.experiments.uci.page`` writes them: Bernoulli dropout next to the published column that it
reproduces, and paired differences of the other posteriors from Bernoulli. A test checks that the page is up to date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.experiments.uci.protocol import PROTOCOLS, SETTINGS
from pyrodrop.analysis.experiments.uci.table import BASE, Cells, distance, gains_of, lines, mean_and_error, pair
from pyrodrop.analysis.reports import generated
from pyrodrop.zoo.uci_published import PUBLISHED

REFERENCE = Path(__file__).parents[2] / "reference" / "uci"
TABLES = ("gal2016", "gal2018")


def text() -> str:
    """All tables, in Markdown."""
    parts = []
    for protocol in TABLES:
        cells = reference(protocol)
        if any(guide == BASE for _, guide in cells):
            parts += [_beside_published(protocol, cells), *([_beside_bernoulli(cells)] if gains_of(cells) else [])]
    return "\n\n".join(parts) + "\n"


def reference(protocol: str) -> Cells:
    """Our cells of a protocol, by set and guide, in the order of the sets."""
    files = sorted((REFERENCE / protocol).glob("*.json"))
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    found = {(content["cell"]["data"], _column(content["cell"])): content for content in contents}
    return {key: found[key] for key in sorted(found, key=lambda key: (list(SETTINGS).index(key[0]), key[1]))}


def _beside_published(protocol: str, cells: Cells) -> str:
    published = PROTOCOLS[protocol].published
    title = (
        f"Protocol `{protocol}`, MC dropout; published ({published}) → ours (difference in combined standard errors):"
    )
    rows = [["set", "splits", "RMSE", "log density, nats", "minutes"]]
    for (name, guide), cell in cells.items():
        if guide == BASE:
            theirs = PUBLISHED[published][name]
            columns = [_against(cell[metric], getattr(theirs, metric)) for metric in ("rmse", "log_density")]
            rows.append([name, str(len(cell["rmse"])), *columns, f"{cell['seconds'] / 60:.1f}"])
    return f"{title}\n\n{lines(rows)}"


def _beside_bernoulli(cells: Cells) -> str:
    title = (
        "Log density of other posteriors less Bernoulli's, nats per point, paired by split (in standard errors of the "
        "differences); they learn τ where nothing else is said:"
    )
    return f"{title}\n\n{lines(gains_of(cells))}"


def _against(values: list[float], published: tuple[float, float | None]) -> str:
    ours = mean_and_error(values)
    apart = distance(ours, published)
    return f"{pair(*published)} → {pair(*ours)}" + ("" if apart is None else f" ({apart:+.1f})")


def _column(cell: Mapping[str, Any]) -> str:
    """A posterior, and its noise where that is not its own choice."""
    return cell["guide"] + {"auto": "", "grid": ", τ as Bernoulli"}.get(cell["precision"], f", τ {cell['precision']}")


if __name__ == "__main__":
    generated.put(generated.REFERENCES, "uci", text())
