"""Run the first Python block of the README with the installed package: ``python -P .ci/first_block.py``."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path


def main() -> None:
    """Run it; an error ends it."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    first = re.search(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    if first is None:
        raise SystemExit("README.md has no Python block")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, contextlib.chdir(scratch):
        exec(compile(first[1], "README.md", "exec"), {"__name__": "readme"})


if __name__ == "__main__":  # processes that are spawned import this file again
    main()
