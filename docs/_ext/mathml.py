"""Formulas as MathML, which browsers draw themselves: no script, and nothing from the network."""

from __future__ import annotations

from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(f'<span class="math notranslate nohighlight">{_drawn(node, False)}</span>')
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight") + _drawn(node, True) + "</div>\n")
    raise nodes.SkipNode


def _drawn(node: nodes.math | nodes.math_block, block: bool) -> str:
    try:
        return tex2mathml(node.astext().strip(), as_block=block)
    except MathError as error:
        _LOG.warning("this formula cannot be shown: %s: %s", node.astext(), error, location=node)
        return f"<code>{escape(node.astext())}</code>"


