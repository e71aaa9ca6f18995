"""Names in backquotes in docstrings: a link where the name is documented, and code otherwise.

Docstrings are written to be read as text, too, so arguments, names of this package and of other packages are all in single
backquotes. A name that begins with a module or a public class of this package must exist: if it does not, Sphinx says so.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from docutils import nodes
from other_projects import WRITTEN
from public import elsewhere, places, value
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

# Types of this package that annotations name and that users do not import.
NOT_PUBLIC = {"Form", "Group", "Inputs", "Per", "Predicts", "Shape"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Make backquotes references, and find what they refer to."""
    app.config.default_role = "py:obj"
    app.connect("missing-reference", resolved, priority=400)  # before the inventories
    app.connect("missing-reference", code, priority=900)
    return {"parallel_read_safe": True}


def resolved(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """A link, or the name as code; None for what Sphinx is to report."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    documented = documented_as(target)
    if documented:
        domain = env.domains.python_domain
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", documented, node, content)  # type: ignore[arg-type]
    if target in WRITTEN:
        node["reftarget"] = WRITTEN[target]  # for the inventories
        return None
    if target.startswith("pyrodrop."):
        return content if exists(target) and target not in public() else None
    if node["reftype"] == "class" and target in NOT_PUBLIC:
        return content
    return None


def code(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """A name in backquotes that is documented nowhere, as code; None for what Sphinx is to report."""
    if node.get("refdomain") != "py" or node["reftype"] != "obj":
        return None
    target = str(node["reftarget"])
    first, _, rest = target.partition(".")
    ours = short().get(first)
    missing = (ours and rest and not exists(f"{ours}.{rest}")) or target.startswith("pyrodrop.")
    return None if missing else content


def documented_as(target: str) -> str | None:
    """The path under which a name is documented, if it is another one: that of a public name without its module, or of a
    class or function at the place where it is defined."""
    if target in elsewhere():
        return elsewhere()[target]
    first, dot, rest = target.partition(".")
    if first in short():
        return short()[first] + dot + rest
    return defined().get(target)


@functools.cache
def public() -> set[str]:
    """The paths under which names are documented."""
    return {f"{module}.{name}" for module, names in places().items() for name in names}


@functools.cache
def short() -> dict[str, str]:
    """Public names without their modules, where only one has the name."""
    all_paths = [(name, f"{module}.{name}") for module, names in places().items() for name in names]
    paths = dict(all_paths)
    return {
        name: path for name, path in paths.items() if [n for n, _ in all_paths].count(name) == 1 or name[0].islower()
    }


@functools.cache
def defined() -> dict[str, str]:
    """Where classes and functions are defined, and where they are documented."""
    documented = {}
    for module, names in places().items():
        for name in names:
            member = value(module, name)
            if hasattr(member, "__qualname__"):
                documented[f"{member.__module__}.{member.__qualname__}"] = f"{module}.{name}"
    return documented


@functools.cache
def exists(path: str) -> bool:
    """Whether a dotted name of the package is there, public or not."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            what: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            fields = getattr(what, "__annotations__", {})
            if not hasattr(what, name) and name not in fields:
                return False
            what = getattr(what, name, None)
        return True
    return False
