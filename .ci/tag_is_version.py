"""End with an error unless a tag, such as v0.1.0, is that of the version in ``pyproject.toml`` and ``CITATION.cff``."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Compare the tag, the only argument, with both."""
    tag = sys.argv[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if {tag} != {f"v{version}" for version in (project, *cited)}:
        raise SystemExit(f"the tag is {tag}, pyproject.toml has version {project}, CITATION.cff {', '.join(cited)}")


if __name__ == "__main__":
    main()
