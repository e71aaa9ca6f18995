"""Docstrings, which are written to be read as text too, as reStructuredText in the form that Napoleon reads.

Formulas and small tables, which are indented, become literal blocks; bars of absolute values and the plural of a name in
backquotes stay as they are; arguments that share a description get one each, with what the constraints of the signature
allow; references are a list; what is returned is never read as a type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

import pyrodrop
from pyrodrop.checks import Constraint, choice, constraints_of, flag
from pyrodrop.training.settings import Settings

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|References|Example|Examples|Note):$")
_ARGUMENTS = re.compile(r"    (\w+(?:, \w+)*): (.*)$")
_CODE = re.compile(r"(``.*?``)|\|")
_CLASS = re.compile(r"<class '([\w.]+)'>")
_PLURAL = re.compile(r"(?<!`)(`[^`\s][^`]*`)(?=\w)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Change docstrings before Napoleon, whose priority is 500, reads them."""
    app.connect("autodoc-process-docstring", _change, priority=400)
    app.connect("autodoc-process-signature", _default)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    return {"parallel_read_safe": True}


def _change(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    # Napoleon takes what stands before a colon in a property's first line for its type. All types are annotations here.
    first = ["..", ""] if what in ("property", "attribute", "data") and lines else []
    lines[:] = first + changed(lines, allowed(obj) if what in ("function", "method", "class") else {})


def allowed(public: Any) -> dict[str, str]:
    """What the arguments of a function or class may be, by name, in words."""
    with_options = public in (pyrodrop.fit, pyrodrop.fit_replicates, pyrodrop.Training)
    constraints: Mapping[str, Constraint] = constraints_of(Settings if with_options else public)
    return {name: each.allowed() for name, each in constraints.items() if each.check not in (flag, choice)}


def _default(
    app: Sphinx, what: str, name: str, obj: object, options: object, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Defaults as Python, without which no type would be a link: those that a function makes, and classes."""
    return arguments and _CLASS.sub(r"\1", arguments.replace("<factory>", "...")), returned


def changed(lines: list[str], allowed: Mapping[str, str]) -> list[str]:
    """The lines of a docstring in the form that Napoleon reads, with what is `allowed` after an argument's description."""
    result: list[str] = []
    section, number = "", 0

    def block(indent: int) -> list[str]:
        """The following lines that are indented so far, without the blank ones at their end."""
        nonlocal number
        taken = []
        while number < len(lines) and (lines[number][:indent].strip() == ""):
            taken.append(lines[number])
            number += 1
        while taken and not taken[-1].strip():
            taken.pop()
            number -= 1
        return taken

    while number < len(lines):
        line = lines[number]
        if line and not line.startswith(" "):
            heading = _SECTION.match(line)
            section = heading[1] if heading else ""
        described = _ARGUMENTS.match(line) if section in ("Args", "Attributes") else None
        before = [text for text in result if text]
        literal = line.startswith("    ") and not section and (not result or not result[-1])
        if section == "Returns" and line == "Returns:":
            number += 1
            first, *rest = [text[4:] for text in block(4)]
            result += [f":returns: {inline(first)}", *(f"    {inline(text)}" if text else "" for text in rest), ""]
        elif described:
            number += 1
            rest = [inline(text) for text in block(5)]
            for argument in described[1].split(", "):
                range_of = [f"        Allowed: {allowed[argument]}."] if argument in allowed else []
                result += [f"    {argument}: {inline(described[2])}", *rest, *range_of]
        elif section == "References" and line.startswith("    "):
            number += 1
            result.append(
                f"      {inline(line.strip())}" if line.startswith("     ") else f"    * {inline(line.strip())}"
            )
        elif literal:
            taken = block(4)
            marked = before and before[-1].endswith("::")
            result += [*([] if marked else ["::", ""]), *taken, ""]
        else:
            number += 1
            result.append(inline(line))
    return result


def inline(line: str) -> str:
    """A line of text in which bars and plurals have no meaning of their own; examples stay as they are."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    return _PLURAL.sub(r"\1\\ ", _CODE.sub(lambda match: match[1] or r"\|", line))
