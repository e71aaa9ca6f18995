"""The stored cells of the UCI tables, ``analysis/lab/results/uci.csv``: a row per split of a cell.

A column ``validation N`` has the log densities of the validation rows at the N-th point of the grid, and `chosen` the point
that was chosen; `seconds` stands in the first row of a cell. ``python -m pyrodrop.analysis.lab.experiments.uci.stored
FOLDER`` puts the cells of a run in place of those that are stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyrodrop.analysis.lab import RESULTS, tidy
from pyrodrop.analysis.lab.experiments.uci.cell import Cell, Scores
from pyrodrop.analysis.lab.experiments.uci.protocol import SETTINGS

STORED = RESULTS / "uci.csv"


def cells(protocol: str, path: Path = STORED) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of a protocol by set and method, in the order of the sets; a method is a guide, or ``GUIDE, PRECISION``."""
    rows: dict[tuple[str, str], list[tidy.Row]] = {}
    for row in tidy.read(path):
        if row["study"] == protocol:
            rows.setdefault((row["problem"], row["method"]), []).append(row)
    order = sorted(rows, key=lambda key: (list(SETTINGS).index(key[0]), key[1]))
    return {(name, method): _cell(protocol, name, method, rows[name, method]) for name, method in order}


def _cell(protocol: str, name: str, method: str, rows: list[tidy.Row]) -> dict[str, Any]:
    guide, _, precision = method.partition(", ")
    cell = Cell(name, guide, protocol, precision or "auto", "released", len(rows), 0)  # type: ignore[arg-type]
    points = cell.points()
    searched = "validation 0" in rows[0]
    return {
        "cell": asdict(cell),
        "points": [asdict(point) for point in points],
        "validation": [[row[f"validation {n}"] for row in rows] for n in range(len(points))] if searched else None,
        "chosen": [int(row.get("chosen", 0)) for row in rows],
        "plan": {"precision": cell.noise},
        "seconds": rows[0]["seconds"],
        **{score: [row[score] for row in rows] for score in Scores._fields if score in rows[0]},
    }


def rows_of(content: Mapping[str, Any]) -> list[tidy.Row]:
    """The rows of a cell that `run` has measured."""
    cell = content["cell"]
    method = cell["guide"] if cell["precision"] == "auto" else f"{cell['guide']}, {cell['precision']}"
    return [
        {
            **{"study": cell["protocol"], "problem": cell["data"], "method": method, "seed": split},
            **{score: content[score][split] for score in Scores._fields if score in content},
            "seconds": content["seconds"] if split == 0 else None,
            **({"chosen": content["chosen"][split]} if content["validation"] else {}),
            **{f"validation {n}": values[split] for n, values in enumerate(content["validation"] or ())},
        }
        for split in range(cell["splits"])
    ]


def main(folder: str) -> None:
    """Put the cells of a run in place of those that are stored."""
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(Path(folder).glob("*-*.json"))]
    tidy.put(STORED, [row for content in contents for row in rows_of(content)])


if __name__ == "__main__":
    main(*sys.argv[1:])
