"""Dead links of a built site: ``python docs/_ext/dead_links.py docs/_build/html``.

Every ``href`` and ``src`` of every page that leads to the site itself must lead to a file, and to an anchor in it.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a tag has."""
        for name, value in attrs:
            if value and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)
            elif value and name == "srcset":
                self.links += [candidate.split()[0] for candidate in value.split(",")]


def dead(root: Path) -> list[str]:
    """The dead links of the pages in a folder, a line each.

    Raises:
        FileNotFoundError: there are no pages.
    """
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.html"))}
    if not pages:
        raise FileNotFoundError(f"there are no pages in {root}")
    problems = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                problems.append(f"{path.relative_to(root.resolve())}: {link}: no such file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                problems.append(f"{path.relative_to(root.resolve())}: {link}: no such anchor")
    return problems


if __name__ == "__main__":
    lines = dead(Path(sys.argv[1]))
    print("\n".join(lines) or "no internal link is dead")
    sys.exit(bool(lines))
