"""The table of networks in ``docs/your-own-network.md``, from the files in ``tests/networks``.

``python -m pyrodrop.analysis.networks.page`` writes it. A test checks that the page is up to date.
"""

from __future__ import annotations

import ast
from pathlib import Path

from pyrodrop.analysis.reports import generated

ROOT = Path(__file__).resolve().parents[2]
NETWORKS, PAGE = ROOT / "tests" / "networks", ROOT / "docs" / "your-own-network.md"


def text(folder: Path = NETWORKS) -> str:
    """One line per file, with the first sentence of its docstring, in Markdown."""
    rows = ["| file | network |", "| --- | --- |"]
    for file in sorted(folder.glob("*.py")):
        words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if words and not file.name.startswith("test_"):
            rows.append(f"| `{file.stem}` | {words.splitlines()[0].replace('|', '/')} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    generated.put(PAGE, "networks", text())
