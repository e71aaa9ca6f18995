"""End with an error unless a tag, such as v0.1.0, is that of the version in ``pyproject.toml`` and ``CITATION.cff``.

Also while the address in ``pyproject.toml`` is a placeholder, which PyPI would show, or ``CITATION.cff`` has another one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Compare the tag, the only argument, with both."""
    tag = sys.argv[1]
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    project = metadata["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = re.findall(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    if {tag} != {f"v{version}" for version in (project, *cited)}:
        raise SystemExit(f"the tag is {tag}, pyproject.toml has version {project}, CITATION.cff {', '.join(cited)}")
    if placeholders := [url for url in metadata["urls"].values() if "example.org" in url]:
        raise SystemExit(f"set the address of the project in pyproject.toml first; it is {placeholders[0]}")
    if f"repository-code: {metadata['urls']['Repository']}\n" not in citation:
        raise SystemExit(f"repository-code of CITATION.cff must be {metadata['urls']['Repository']}")


if __name__ == "__main__":
    main()
