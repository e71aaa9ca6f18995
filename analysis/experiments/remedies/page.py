"""The tables of ``docs/what-helps.md``, from ``analysis/reference/remedies.json``.

``python -m pyrodrop.analysis.experiments.remedies.page`` writes them. A test checks that the page is up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.experiments.remedies.experiment import in_words
from pyrodrop.analysis.reports import generated
from pyrodrop.analysis.zoo.references import FOLDER
from pyrodrop.json_files import read_record

PAGE = Path(__file__).resolve().parents[3] / "docs" / "what-helps.md"


def texts(path: Path = FOLDER / "remedies.json") -> dict[str, str]:
    """Mean, least and most of the seeds of every number, by section, in Markdown."""
    sections: Mapping[str, Any] = read_record(path).content["sections"]
    return {f"{name} of remedies": _table(rows) for name, rows in sections.items()}


def _table(rows: Mapping[str, Mapping[str, list[float]]]) -> str:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [["method", *columns]]
    cells += [
        [name, *(in_words(row[column]) if column in row else "" for column in columns)] for name, row in rows.items()
    ]
    return f"\n{generated.table(cells)}\n\n"


if __name__ == "__main__":
    for name, text in texts().items():
        generated.put(PAGE, name, text)
