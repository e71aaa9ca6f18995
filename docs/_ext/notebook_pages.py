"""The notebooks as pages and an index of them: written to ``notebooks/`` at the start of a build.

A notebook is copied with its stored outputs, and its links rewritten. Its thumbnail is a figure among these outputs: one
whose cell has the tag ``thumbnail``, or the first.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated import Folder
from links import ROOT, rewritten
from sphinx.application import Sphinx

NOTEBOOKS = ROOT / "analysis" / "lab" / "notebooks"


@dataclass(frozen=True)
class Notebook:
    """A notebook: its name, title, first paragraph, content and thumbnail, if it has a figure."""

    name: str
    title: str
    summary: str
    content: dict[str, Any]
    thumbnail: bytes | None


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build starts."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    """Write ``notebooks/index.md``, the notebooks and their thumbnails."""
    notebooks = [read(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"), key=order)]
    with Folder(Path(app.srcdir) / "notebooks") as folder:
        folder.write("index.md", index(notebooks))
        for notebook in notebooks:
            folder.write(f"{notebook.name}.ipynb", json.dumps(notebook.content, indent=1, ensure_ascii=False))
            if notebook.thumbnail:
                folder.write(f"thumbnails/{notebook.name}.png", notebook.thumbnail)


def order(path: Path) -> tuple[int, str]:
    """The number at the head of a notebook's name, then the name."""
    number = re.match(r"\d+", path.stem)
    return int(number[0]) if number else 10**6, path.stem


def read(path: Path) -> Notebook:
    """A notebook with its links rewritten for the site.

    Raises:
        ValueError: it has no title, or a code cell without outputs stored by an execution.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    name, texts = path.stem, []
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            lies = f"analysis/lab/notebooks/{path.name}"
            cell["source"] = rewritten("".join(cell["source"]), lies, f"docs/notebooks/{path.name}")
            texts.append(cell["source"])
        elif cell["cell_type"] == "code" and cell["execution_count"] is None and "".join(cell["source"]).strip():
            raise ValueError(f"{path.name} has a cell that was not executed: {''.join(cell['source'])[:60]!r}")
    title = re.search(r"^# (.+)$", texts[0] if texts else "", re.MULTILINE)
    if not title:
        raise ValueError(f"the first text of {path.name} has no title")
    paragraphs = [" ".join(text.split()) for text in re.split(r"\n\s*\n", texts[0][title.end() :]) if text.strip()]
    return Notebook(name, title[1].strip(), sentences(paragraphs), content, thumbnail(content))


def sentences(paragraphs: list[str]) -> str:
    """The first paragraph that is plain text, up to about 200 characters of whole sentences."""
    plain = [text for text in paragraphs if not text.startswith(("$", "|", "-", "#", ">", "```"))]
    summary = ""
    for sentence in re.split(r"(?<=[.?!])\s", plain[0] if plain else ""):
        if summary and len(summary) + len(sentence) > 200:
            break
        summary = f"{summary} {sentence}".strip()
    without_links = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", summary)  # the whole card is a link
    return re.sub(r"[:,]$", ".", without_links)


def thumbnail(content: dict[str, Any]) -> bytes | None:
    """The stored figure of the cell with the tag ``thumbnail``, or else the first one."""
    tagged = [cell for cell in content["cells"] if "thumbnail" in cell.get("metadata", {}).get("tags", [])]
    return next(iter([*pictures({"cells": tagged}), *pictures(content)]), None)


def pictures(content: dict[str, Any]) -> list[bytes]:
    """All stored figures of a notebook, in order."""
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    stored = [output.get("data", {}).get("image/png") for cell in cells for output in cell["outputs"]]
    return [base64.b64decode("".join(picture)) for picture in stored if picture]


def index(notebooks: list[Notebook]) -> str:
    """The index: a card for each notebook."""
    lines = ["# Notebooks", "", "Executed notebooks, shown with the outputs that they have in the repository.", ""]
    lines += ["::::{grid} 1 2 2 3", ":gutter: 3", ":class-container: gallery", ""]
    for notebook in notebooks:
        lines += [f":::{{grid-item-card}} {notebook.title}", f":link: {notebook.name}", ":link-type: doc"]
        if notebook.thumbnail:
            lines += [
                f":img-top: thumbnails/{notebook.name}.png",
                f":img-alt: A figure of the notebook {notebook.title}",
            ]
        lines += ["", notebook.summary, ":::", ""]
    lines += ["::::", "", "```{toctree}", ":hidden:", "", *(notebook.name for notebook in notebooks), "```", ""]
    return "\n".join(lines)
