"""README, CHANGELOG and other files of `links.PROJECT` as pages: written to ``project/`` at the start of a build."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from generated import Folder
from links import PROJECT, ROOT, rewritten
from sphinx.application import Sphinx

_PICTURE = re.compile(r'((?:src|srcset)=")(?!https?:)([^"]+)"|(!\[[^\]]*\]\()(?!https?:)([^)]+)\)')

_WORDMARK = "# ![pyrodrop](docs/_static/wordmark.svg)\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build starts."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    """Write a page for each of these files."""
    with Folder(Path(app.srcdir) / "project") as folder:
        for name, page in PROJECT.items():
            text = (
                (ROOT / name).read_text(encoding="utf-8").replace(_WORDMARK, "# pyrodrop\n", 1)
            )  # a page needs a title
            text = rewritten(text, name, page)
            folder.write(
                Path(page).name, _PICTURE.sub(lambda match, name=name, page=page: _picture(match, name, page), text)
            )


def _picture(match: re.Match[str], lies: str, page: str) -> str:
    path = os.path.relpath(Path(lies).parent / (match[2] or match[4]), Path(page).parent)
    return f'{match[1]}{path}"' if match[1] else f"{match[3]}{path})"
