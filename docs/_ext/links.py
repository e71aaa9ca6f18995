"""Links between files of the repository, as links between pages of the site.

Pages, notebooks and the files at the top are written so that their links work where they lie. Here a link to a file that
is also a page of the site leads to the page; a link to another file of `docs` downloads it; a link to another file of the
repository leads there once its address is public, and becomes its name before; and a link to a file that is not there stays
as it is, which Sphinx reports.
"""

from __future__ import annotations

import os.path
import re
import tomllib
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PROJECT = {
    "README.md": "docs/project/readme.md",
    "CHANGELOG.md": "docs/project/changelog.md",
    "CONTRIBUTING.md": "docs/project/contributing.md",
    "SECURITY.md": "docs/project/security.md",
}  # files elsewhere that are pages, and where
REPOSITORY: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
PUBLIC = "example.org" not in REPOSITORY
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"(^[ ]*(```|~~~).*?^[ ]*\2[ ]*$)", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> dict[str, bool]:
    """Rewrite the links of written pages when they are read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(docname))
    if path.parent == Path(app.srcdir) and path.suffix == ".md":
        source[0] = rewritten(source[0], f"docs/{path.name}", f"docs/{path.name}")


def rewritten(text: str, lies: str, shown: str) -> str:
    """Markdown with its links to files rewritten.

    Args:
        text: Markdown.
        lies: the file that the text is from, from the root of the repository.
        shown: the file of the page that shows it.
    """
    parts = _FENCE.split(text)[::3]
    fences = [match[0] for match in _FENCE.finditer(text)]
    done = [_LINK.sub(lambda match: _link(match[1], match[2], lies, shown), text_between) for text_between in parts]
    return "".join(a + b for a, b in zip(done, [*fences, ""], strict=True))


def _link(label: str, target: str, lies: str, shown: str) -> str:
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return f"[{label}]({target})"
    file = os.path.normpath(PurePosixPath(lies).parent / path)
    page = page_of(file)
    if page:
        return f"[{label}]({os.path.relpath(page, PurePosixPath(shown).parent)}{mark}{anchor})"
    if file.startswith("docs/") and (ROOT / file).is_file():
        return f"[{label}]({os.path.relpath(file, PurePosixPath(shown).parent)})"
    if (ROOT / file).exists() and PUBLIC:
        return f"[{label}]({REPOSITORY}/blob/main/{file}{mark}{anchor})"
    if (ROOT / file).exists() and not file.startswith(".."):
        return label if label.startswith(("`", "!")) or file in label else f"{label} (`{file}`)"
    return f"[{label}]({target})"


def page_of(file: str) -> str | None:
    """The file of the page that shows a file of the repository; None if none does."""
    if file in PROJECT:
        return PROJECT[file]
    if file in ("analysis/lab/notebooks", "analysis/lab/notebooks/README.md"):
        return "docs/notebooks/index.md"
    path = PurePosixPath(file)
    if path.parent == PurePosixPath("analysis/lab/notebooks") and (ROOT / path.with_suffix(".ipynb")).is_file():
        return f"docs/notebooks/{path.stem}.ipynb"
    return file if path.parts[0] == "docs" and path.suffix == ".md" and (ROOT / file).is_file() else None
