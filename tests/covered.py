"""Which lines and branches the tests run: ``make coverage``, or for a measurement in pieces

    python -m coverage run -p -m pytest -n 0 tests/guides      once for every piece
    python -m coverage combine
    python -P tests/covered.py                                 a table; --write: docs/_static/coverage.json and its badge

File and badge are of the whole package; a measurement of less is refused. Processes that tests start are not measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "_static" / "coverage.json"
BADGE = ROOT / "docs" / "_static" / "badges" / "coverage.svg"
COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")
CORE = "core"  # all but analysis


def measured() -> dict[str, Any]:
    """What coverage.py has recorded, by file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", path], cwd=ROOT, check=True)
        return json.loads(path.read_text(encoding="utf-8"))["files"]  # type: ignore[no-any-return]


def package_of(file: str) -> str:
    """Such as ``pyrodrop.engines`` for ``pyrodrop/engines/graph.py``, and ``pyrodrop.models`` for ``models/mlp.py``."""
    first, *rest = file.split("/")
    if first != "pyrodrop":
        return f"pyrodrop.{first}"
    return "pyrodrop" if len(rest) == 1 else f"pyrodrop.{rest[0]}"


def totals(files: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Statements and branches of every package, how many of them ran, and of the core as a whole."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for file, about in files.items():
        package = package_of(file)
        for name in {package, *([CORE] if package != "pyrodrop.analysis" else [])}:
            for count in COUNTS:
                found[name][count] += about["summary"][count]
    return dict(sorted(found.items()))


def share(counts: dict[str, int], kind: str = "lines") -> float:
    """Of statements or branches, in percent."""
    ran, whole = ("covered_lines", "num_statements") if kind == "lines" else ("covered_branches", "num_branches")
    return 100 * counts[ran] / counts[whole] if counts[whole] else 100.0


def badge(value: str) -> str:
    """An SVG in the form of the other badges."""
    width = 62 + 7 * len(value) + 10
    middle = 62 + (width - 62) / 2
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="coverage: {value}">
  <title>coverage: {value}</title>
  <clipPath id="round"><rect width="{width}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#round)">
    <rect width="62" height="20" fill="#555"/>
    <rect x="62" width="{width - 62}" height="20" fill="#2e7d32"/>
  </g>
  <g fill="#fff" text-anchor="middle" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
    <text x="31" y="14">coverage</text>
    <text x="{middle:g}" y="14">{value}</text>
  </g>
</svg>
"""


def main(arguments: list[str] | None = None) -> None:
    """Print the table; write file and badge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file and the badge")
    write = parser.parse_args(arguments).write
    files = measured()
    counts = totals(files)
    print(f"{'package':24} {'statements':>10} {'lines':>8} {'branches':>9}")
    for name, each in counts.items():
        print(f"{name:24} {each['num_statements']:10} {share(each):7.1f}% {share(each, 'branches'):8.1f}%")
    if write:
        summaries = {file: about["summary"] for file, about in files.items()}
        never = [file for file, each in summaries.items() if each["num_statements"] and not each["covered_lines"]]
        if len(never) > len(files) / 10:
            raise SystemExit(
                f"{len(never)} of {len(files)} files were never imported: measure all tests before --write"
            )
        record = {"python": platform.python_version(), "packages": counts}
        FILE.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        BADGE.write_text(badge(f"{share(counts[CORE]):.1f} %"), encoding="utf-8")


if __name__ == "__main__":
    main()
