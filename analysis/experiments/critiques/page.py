"""The page of all panels."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from pyrodrop.analysis.experiments.critiques.panel import Panel
from pyrodrop.analysis.reports.page import document, picture, shown
from pyrodrop.files import whole

_INTRODUCTION = (
    "Papers that question dropout as Bayesian inference, and one that supports it, each repeated on a small problem whose "
    "answer is known in closed form, by quadrature, or by sampling. "
    "Statements are marked with whether they hold in this run."
)


def write_page(panels: Mapping[str, Panel], path: Path) -> Path:
    """Write one self-contained HTML page atomically and return its path."""
    parts = ["<h1>Is dropout Bayesian? The critiques, repeated</h1>", f"<p>{escape(_INTRODUCTION)}</p>"]
    parts.append(
        "<ol>" + "".join(f'<li><a href="#{name}">{escape(p.title)}</a></li>' for name, p in panels.items()) + "</ol>"
    )
    parts += [_section(name, panel) for name, panel in panels.items()]
    with whole(path) as part:
        part.write_text(document("critiques", parts), encoding="utf-8")
    return path


def _section(name: str, panel: Panel) -> str:
    tables = "".join(f"<h3>{escape(caption)}</h3>{shown(rows)}" for caption, rows in panel.tables.items())
    helps = "".join(f"<li>{escape(line)}</li>" for line in panel.helps)
    return (
        f'<h2 id="{name}">{escape(panel.title)}</h2>'
        f'<p><a href="{escape(panel.link)}">{escape(panel.paper)}</a></p><p>{escape(panel.shown)}</p>'
        f"{picture(panel.figure, panel.shown)}{shown(panel.facts)}<h3>What helps</h3><ul>{helps}</ul>{tables}"
    )
