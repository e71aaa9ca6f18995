"""``python -m pyrodrop.analysis.networks [FOLDER or FILE]``: check networks and print the table."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

import pyrodrop
from pyrodrop.analysis.networks.agreement import Result
from pyrodrop.analysis.networks.case import Cell, load
from pyrodrop.analysis.networks.contract import Bench
from pyrodrop.analysis.networks.plan import THIN, Draws, cells, few_cells, usual_cells
from pyrodrop.analysis.networks.table import as_json, notes, table
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.reports.terminal import paragraph, print_table
from pyrodrop.files import whole

_CELLS = {"usual": usual_cells, "all": cells}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check networks and print the table; returns 1 if a cell is wrong, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m pyrodrop.analysis.networks", description=__doc__)
    parser.add_argument(
        "where", nargs="?", type=Path, help="a folder of networks, or one file; tests/networks by default"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of the networks to check")
    parser.add_argument("--cells", choices=("few", "usual", "all"), default="usual", help="how many cells of each")
    parser.add_argument("--pick", default="", help="check cells with one of these comma-separated words in their name")
    parser.add_argument("--draws", choices=("thin", "full"), default="full", help="number of samples per comparison")
    parser.add_argument("--json", type=Path, help="write the results to this file, and resume from it if it exists")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = load(_folder(options.where))
    unknown = set(options.only) - set(cases)
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    asked = {name: case for name, case in cases.items() if not options.only or name in options.only}
    results = _read(options.json)
    plan: list[tuple[str, Cell]] = []
    for number, (name, case) in enumerate(asked.items()):
        if case.missing():
            print(f"{name}: skipped, {case.missing()}")
            continue
        chosen = few_cells(case, number) if options.cells == "few" else _CELLS[options.cells](case)
        plan += [
            (name, cell)
            for cell in chosen
            if cell not in results.get(name, {})
            and (not options.pick or any(word in str(cell) for word in options.pick.split(",")))
        ]
    bench: Bench | None = None
    start = time.perf_counter()
    for name, cell in (bar := tqdm(plan, unit="cell", disable=options.quiet or None)):
        bar.set_description(f"{name} {cell}")
        if bench is None or bench.case is not asked[name]:
            bench = Bench(asked[name], Draws() if options.draws == "full" else THIN)
            _write(options.json, results)
        began = time.perf_counter()
        results.setdefault(name, {})[cell] = result = bench.check(cell)
        if result.kind == "wrong":
            bar.write(f"{name} {cell}: {result.note} ({time.perf_counter() - began:.1f} s)")
    _write(options.json, results)
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


def _read(path: Path | None) -> dict[str, dict[Cell, Result]]:
    if path is None or not path.exists():
        return {}
    rows = read_record(path, "remove it to check all networks again").content
    keys, values = Cell._fields, Result._fields
    return {
        name: {Cell(*(r[k] for k in keys)): Result(*(r[v] for v in values)) for r in each}
        for name, each in rows.items()
    }


def _write(path: Path | None, results: dict[str, dict[Cell, Result]]) -> None:
    if path is not None:
        with whole(path) as file:
            file.write_text(json.dumps(as_json(results), indent=1))


if __name__ == "__main__":
    sys.exit(main())
