"""How Sphinx builds the documentation: ``make docs``. Nothing is executed and nothing is fetched while it builds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from other_projects import mapping  # noqa: E402

import pyrodrop  # noqa: E402

project = "pyrodrop"
author = "the authors of pyrodrop"
version = release = pyrodrop.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",  # MathJax's files, instead of a content delivery network's
    "docstrings",
    "links",
    "project_pages",
    "api_pages",
    "names",
    "zoo_pages",
    "notebook_pages",
    "gallery",
    "accessible",
]
exclude_patterns = ["_build", "_ext", "paper"]
nitpicky = True  # a reference that leads nowhere is a warning, and `make docs` fails on warnings

# Pages and notebooks. Outputs are those that the notebooks have.
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type"]

# The reference, from docstrings in Google's style and the types of signatures.
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
# Their signatures, which are made of the options, have more defaults than their source.
for function in (pyrodrop.fit, pyrodrop.fit_replicates, pyrodrop.Training.__init__):
    del function.__wrapped__
autodoc_inherit_docstrings = False
autodoc_use_type_comments = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# Names of other projects, without the network.
intersphinx_mapping = mapping(HERE / "_build" / "inventories")

site = os.environ.get("PYRODROP_SITE", "")
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL") or site  # of canonical links
html_theme = "furo"
html_title = "pyrodrop"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = ["scrolls.js"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "light_logo": "wordmark-light.svg",
    "dark_logo": "wordmark-dark.svg",
    "sidebar_hide_name": True,
}
pygments_style = "a11y-light"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
