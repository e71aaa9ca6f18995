"""``python -m pyrodrop.analysis.lab.networks [FOLDER or FILE]``: check networks and print the table."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

import pyrodrop
from pyrodrop.analysis.lab.networks.agreement import Result
from pyrodrop.analysis.lab.networks.case import Cell, load
from pyrodrop.analysis.lab.networks.contract import Bench
from pyrodrop.analysis.lab.networks.plan import Draws, cells, few_cells, usual_cells
from pyrodrop.analysis.lab.networks.table import notes, table
from pyrodrop.analysis.reports.terminal import paragraph, print_table

_CELLS = {"usual": usual_cells, "all": cells}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check networks and print the table; returns 1 if a cell is wrong, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m pyrodrop.analysis.lab.networks", description=__doc__)
    parser.add_argument(
        "where", nargs="?", type=Path, help="a folder of networks, or one file; tests/networks by default"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of the networks to check")
    parser.add_argument("--cells", choices=("few", "usual", "all"), default="usual", help="how many cells of each")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = load(_folder(options.where))
    unknown = set(options.only) - set(cases)
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    asked = {name: case for name, case in cases.items() if not options.only or name in options.only}
    results: dict[str, dict[Cell, Result]] = {}
    plan: list[tuple[str, Cell]] = []
    for number, (name, case) in enumerate(asked.items()):
        if case.missing():
            print(f"{name}: skipped, {case.missing()}")
            continue
        chosen = few_cells(case, number) if options.cells == "few" else _CELLS[options.cells](case)
        plan += [(name, cell) for cell in chosen]
    bench: Bench | None = None
    start = time.perf_counter()
    for name, cell in (bar := tqdm(plan, unit="cell", disable=None)):
        bar.set_description(f"{name} {cell}")
        if bench is None or bench.case is not asked[name]:
            bench = Bench(asked[name], Draws())
        results.setdefault(name, {})[cell] = result = bench.check(cell)
        if result.kind == "wrong":
            bar.write(f"{name} {cell}: {result.note}")
    print_table(table(results))
    for line in notes(results):
        paragraph(line)
    kinds = [result.kind for of_network in results.values() for result in of_network.values()]
    summary = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("right", "fallback", "other", "refused", "wrong"))
    print(f"{len(kinds)} cells of {len(results)} networks: {summary}; {time.perf_counter() - start:.0f} s")
    return int("wrong" in kinds)


def _folder(where: Path | None) -> Path:
    if where is not None:
        if not where.exists():
            raise SystemExit(f"WHERE must be a folder of network files or one file; {where} does not exist")
        return where
    beside = Path(str(pyrodrop.__file__)).resolve().parent.parent / "tests" / "networks"
    if not beside.is_dir():
        raise SystemExit("this installation has no tests/networks: pass a folder of network files, or one file")
    return beside


if __name__ == "__main__":
    sys.exit(main())
