"""What the theme leaves out for readers, with a keyboard or a screen reader too; ``_static/scrolls.js`` does the rest."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_ONLY = {"only-light", "only-dark"}
_SHORT = 20  # characters: a number with its error, or two of them


def setup(app: Sphinx) -> dict[str, bool]:
    """Change pages after the theme."""
    app.connect("doctree-read", links)
    app.connect("doctree-read", cells)
    app.connect("html-page-context", roles, priority=900)
    return {"parallel_read_safe": True}


def links(app: Sphinx, doctree: nodes.document) -> None:
    """The link around a picture of one theme is hidden with it: a link without content has no name."""
    for reference in doctree.findall(nodes.reference):
        for image in reference.findall(nodes.image):
            reference["classes"] += _ONLY.intersection(image["classes"])


def cells(app: Sphinx, doctree: nodes.document) -> None:
    """Cells with a number are named, so that their lines are not broken."""
    for entry in doctree.findall(nodes.entry):
        text = entry.astext()
        if len(text) <= _SHORT and any(character.isdigit() for character in text):
            entry["classes"].append("short")


def roles(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Captions are headings, which need a level; Sphinx writes the arguments of a signature as definitions of nothing."""
    for name in ("furo_navigation_tree", "body"):
        if html := context.get(name):
            html = html.replace(
                '<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'
            )
            html = html.replace('<dl>\n<dd><em class="sig-param">', '<dl role="list">\n<dd><em class="sig-param">')
            context[name] = html.replace('<dd><em class="sig-param">', '<dd role="listitem"><em class="sig-param">')
