"""Run the README's Python blocks, in order and in one namespace, as a reader would paste them."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path


def blocks(text: str) -> list[str]:
    """The code of every fenced Python block."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run them all in a scratch folder; an error ends it."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    namespace: dict[str, object] = {"__name__": "readme"}
    found = blocks(readme)
    if not found:
        raise SystemExit("README.md has no Python block")
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for number, code in enumerate(found, 1):
            exec(compile(code, f"README block {number}", "exec"), namespace)
            print(f"README block {number}: ran")


if __name__ == "__main__":
    main()
