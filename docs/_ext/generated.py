"""A folder of pages that are written at the start of a build."""

from __future__ import annotations

from pathlib import Path


class Folder:
    """Writes files whose content is new, so that Sphinx reads only those again, and removes what is no longer written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: set[Path] = set()

    def __enter__(self) -> Folder:
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file; `name` may have folders."""
        path, new = self.path / name, content.encode() if isinstance(content, str) else content
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != new:
            path.write_bytes(new)
        self._written.add(path)

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            for path in sorted(self.path.rglob("*")):
                if path.is_file() and path not in self._written:
                    path.unlink()
