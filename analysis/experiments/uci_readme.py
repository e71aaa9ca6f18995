"""The README's UCI tables, from the cells in ``analysis/reference/uci``.

``python -m pyrodrop.analysis.experiments.uci_readme`` writes them: Bernoulli dropout beside the published column that it
makes again, and the other posteriors beside Bernoulli, split by split. Nothing of it is typed; a test holds it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.experiments.uci_protocol import PROTOCOLS, SETTINGS
from pyrodrop.analysis.experiments.uci_table import distance, mean_and_error, pair
from pyrodrop.files import whole
from pyrodrop.zoo.uci_published import PUBLISHED

REFERENCE = Path(__file__).parents[1] / "reference" / "uci"
README = Path(__file__).resolve().parents[2] / "README.md"
TABLES = ("gal2016", "gal2018")
BEGIN, END = "<!-- uci: generated -->\n", "<!-- uci: end -->\n"

Cells = Mapping[tuple[str, str], Mapping[str, Any]]


def text() -> str:
    """All tables, in Markdown."""
    parts = []
    for protocol in TABLES:
        cells = reference(protocol)
        if any(guide == "bernoulli" for _, guide in cells):
            parts += [
                _beside_published(protocol, cells),
                *([_beside_bernoulli(cells)] if len(_guides(cells)) > 1 else []),
            ]
    return "\n\n".join(parts) + "\n"


def reference(protocol: str) -> Cells:
    """Our cells of a protocol, by set and guide, in the order of the sets."""
    files = sorted((REFERENCE / protocol).glob("*.json"))
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    found = {(content["cell"]["data"], _column(content["cell"])): content for content in contents}
    return {key: found[key] for key in sorted(found, key=lambda key: (list(SETTINGS).index(key[0]), key[1]))}


def put(readme: Path = README) -> None:
    """Write the tables into the README, between its two marks."""
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    with whole(readme) as part:
        part.write_text(f"{before}{BEGIN}{text()}{END}{after}", encoding="utf-8")


def _beside_published(protocol: str, cells: Cells) -> str:
    published = PROTOCOLS[protocol].published
    lines = [
        f"Protocol `{protocol}`, MC dropout; published ({published}) → ours (difference in combined standard errors):",
        "",
        "| set | splits | RMSE | log density, nats | minutes |",
        "|---|---|---|---|---|",
    ]
    for (name, guide), cell in cells.items():
        if guide == "bernoulli":
            theirs = PUBLISHED[published][name]
            columns = [_against(cell[metric], getattr(theirs, metric)) for metric in ("rmse", "log_density")]
            lines.append(f"| {name} | {len(cell['rmse'])} | {' | '.join(columns)} | {cell['seconds'] / 60:.1f} |")
    return "\n".join(lines)


def _beside_bernoulli(cells: Cells) -> str:
    guides = [guide for guide in _guides(cells) if guide != "bernoulli"]
    lines = [
        "Log density of other posteriors less Bernoulli's, nats a point, split by split (in paired standard errors):",
        "",
        f"| set | {' | '.join(guides)} |",
        f"|---|{'---|' * len(guides)}",
    ]
    for name in dict.fromkeys(name for name, _ in cells):
        if (name, "bernoulli") in cells and any((name, guide) in cells for guide in guides):
            base = cells[name, "bernoulli"]["log_density"]
            row = [_gain(cells[name, guide]["log_density"], base) if (name, guide) in cells else "" for guide in guides]
            lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def _against(values: list[float], published: tuple[float, float | None]) -> str:
    ours = mean_and_error(values)
    apart = distance(ours, published)
    return f"{pair(*published)} → {pair(*ours)}" + ("" if apart is None else f" ({apart:+.1f})")


def _gain(values: list[float], base: list[float]) -> str:
    """Mean difference over splits, and that in its standard error."""
    gains = [a - b for a, b in zip(values, base, strict=True)]
    mean = statistics.fmean(gains)
    return f"{mean:+.2f} ({mean / (statistics.stdev(gains) / math.sqrt(len(gains))):+.1f})"


def _column(cell: Mapping[str, Any]) -> str:
    """A posterior, and its noise where that is not its own choice."""
    return cell["guide"] + {"auto": "", "grid": ", τ as Bernoulli"}.get(cell["precision"], f", τ {cell['precision']}")


def _guides(cells: Cells) -> list[str]:
    return list(dict.fromkeys(guide for _, guide in cells))


if __name__ == "__main__":
    put()
