"""Generated parts of pages: ``python -m pyrodrop.analysis.lab.pages [NAME ...]`` writes them from stored results.

`PARTS` maps the name of each part to its page and a function that returns its text. A test checks that all are up to date.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pyrodrop.analysis.lab import ROOT, generated
from pyrodrop.analysis.lab.benchmarks import small_fits, small_pages
from pyrodrop.analysis.lab.benchmarks.tables import report
from pyrodrop.analysis.lab.benchmarks.tables.chosen import names
from pyrodrop.analysis.lab.experiments import published, uci
from pyrodrop.analysis.lab.experiments.league import page as league
from pyrodrop.analysis.lab.networks.case import load
from pyrodrop.checks import known

DOCS, NETWORKS = ROOT / "docs", ROOT / "tests" / "networks"
BENCHMARKS = report.RESULTS.with_name("README.md")


def networks(folder: Path = NETWORKS) -> str:
    """One line per network that the tests try, in Markdown."""
    rows = [
        ["network", "what it is"],
        *([f"`{case.name}`", case.about.replace("|", "/")] for case in load(folder).values()),
    ]
    return generated.table(rows) + "\n"


PARTS: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "published": (generated.REFERENCES, published.text),
    **{
        f"uci {name}": (generated.REFERENCES, functools.partial(uci.text, name))
        for name in ("gal2018", "gal2016", "gal2016-100x", "gal2016-500x")
    },
    "uci posteriors": (generated.REFERENCES, uci.posteriors),
    "league main": (DOCS / "league.md", functools.partial(league.text, "wasserstein", league.MAIN)),
    "league w2": (generated.REFERENCES, functools.partial(league.text, "wasserstein")),
    "league away": (generated.REFERENCES, functools.partial(league.text, "away")),
    "league tv": (generated.REFERENCES, functools.partial(league.text, "total_variation")),
    "networks": (NETWORKS / "README.md", networks),
    **{
        f"{title} {kind}s": (BENCHMARKS, functools.partial(report.part, kind, half))
        for kind in report.RANKED
        for half, title in report.HALVES.items()
        if names(kind, half)
    },
    "judged regressions, ranks": (
        DOCS / "measured.md",
        functools.partial(report.ranks, "regression", "judging"),
    ),
    "small problems, counts": (
        DOCS / "measured.md",
        lambda: small_pages.counts_text(small_fits.read(small_pages.RESULTS)),
    ),
    "default": (
        BENCHMARKS,
        lambda: small_pages.text(small_fits.read(small_pages.RESULTS), "default"),
    ),
    "one call": (
        BENCHMARKS,
        lambda: small_pages.one_call_text(small_fits.read(small_pages.RESULTS)),
    ),
    "from gp": (
        BENCHMARKS,
        lambda: small_pages.text(small_fits.read(small_pages.RESULTS), "from gp"),
    ),
}


def write(names: list[str]) -> None:
    """Write the parts of these names into their pages; all if `names` is empty."""
    for name in [known(name, PARTS, "part of a page") for name in names] or PARTS:
        page, text = PARTS[name]
        generated.put(page, name, text())


if __name__ == "__main__":
    write(sys.argv[1:])
