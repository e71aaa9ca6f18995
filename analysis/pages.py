"""Generated parts of documentation pages: ``python -m pyrodrop.analysis.pages [NAME ...]`` writes them from stored results.

`PARTS` maps the name of each part to its page and a function that returns its text. A test checks that all are up to date.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.benchmarks import small_pages
from pyrodrop.analysis.benchmarks.tables import report
from pyrodrop.analysis.experiments import peers, published, remedies, uci
from pyrodrop.analysis.experiments.league import page as league
from pyrodrop.analysis.experiments.references import page as references_page
from pyrodrop.analysis.reports import generated
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.names import known

ROOT = Path(__file__).resolve().parents[1]
DOCS, NETWORKS = ROOT / "docs", ROOT / "tests" / "networks"
RESULTS = Path(__file__).parent / "benchmarks" / "results"


def networks(folder: Path = NETWORKS) -> str:
    """One line per file of a folder of networks, with the first sentence of its docstring, in Markdown."""
    rows = [["file", "network"]]
    for file in sorted(folder.glob("*.py")):
        about = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if about and not file.name.startswith("test_"):
            rows.append([f"`{file.stem}`", about.splitlines()[0].replace("|", "/")])
    return generated.table(rows) + "\n"


def _stored(name: str, key: str) -> Any:
    return read_record(RESULTS / name).content[key]


PARTS: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "published": (generated.REFERENCES, published.text),
    **{
        f"uci {name}": (generated.REFERENCES, functools.partial(uci.text, name))
        for name in ("gal2018", "gal2016", "gal2016-100x", "gal2016-500x")
    },
    "uci validation": (generated.REFERENCES, uci.validation),
    "uci posteriors": (generated.REFERENCES, uci.posteriors),
    "references w2": (generated.REFERENCES, lambda: references_page.distances("wasserstein", "{:.3g}")),
    "references spreads": (generated.REFERENCES, references_page.spreads),
    "references covariance": (generated.REFERENCES, lambda: references_page.distances("covariance", "{:.2f}")),
    "references scores": (generated.REFERENCES, references_page.scores),
    "references total variation": (
        generated.REFERENCES,
        lambda: references_page.distances("total_variation", "{:.3f}"),
    ),
    "peers": (generated.REFERENCES, peers.text),
    "league w2": (DOCS / "league.md", functools.partial(league.text, "wasserstein")),
    "league away": (DOCS / "league.md", functools.partial(league.text, "away")),
    "league tv": (DOCS / "league.md", functools.partial(league.text, "total_variation")),
    "networks": (DOCS / "your-own-network.md", networks),
    **{
        f"{title} {kind}s": (DOCS / "tables.md", functools.partial(report.part, kind, half))
        for kind in report.RANKED
        for half, title in report.HALVES.items()
    },
    "default": (
        DOCS / "twenty-problems.md",
        lambda: small_pages.text(_stored("small-problems.json", "problems"), "default"),
    ),
    "from gp": (
        DOCS / "twenty-problems.md",
        lambda: small_pages.text(_stored("small-problems.json", "problems"), "from gp"),
    ),
    "noise": (DOCS / "elbo.md", lambda: small_pages.noise_text(_stored("small-problems.json", "problems"))),
    **{
        f"{section} of remedies": (DOCS / "what-helps.md", functools.partial(remedies.text, section))
        for section in remedies.SECTIONS
    },
}


def write(names: list[str]) -> None:
    """Write the parts of these names into their pages; all if `names` is empty."""
    for name in [known(name, PARTS, "part of a page") for name in names] or PARTS:
        page, text = PARTS[name]
        generated.put(page, name, text())


if __name__ == "__main__":
    write(sys.argv[1:])
