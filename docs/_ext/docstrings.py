"""Docstrings, which are written to be read as text too, as reStructuredText in the form that Napoleon reads.

Formulas and small tables, which are indented, become literal blocks; bars of absolute values and the plural of a name in
backquotes stay as they are; arguments that share a description get one each; what is returned is never read as a type.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note):$")
_SEVERAL = re.compile(r"    (\w+(?:, \w+)+): (.*)$")
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
    lines[:] = ["..", "", *changed(lines)] if what in ("property", "attribute", "data") and lines else changed(lines)


def _default(
    app: Sphinx, what: str, name: str, obj: object, options: object, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Defaults as Python, without which no type would be a link: those that a function makes, and classes."""
    return arguments and _CLASS.sub(r"\1", arguments.replace("<factory>", "...")), returned


def changed(lines: list[str]) -> list[str]:
    """The lines of a docstring in the form that Napoleon reads."""
    found: list[str] = []
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
        several = _SEVERAL.match(line) if section in ("Args", "Attributes") else None
        before = [text for text in found if text]
        literal = line.startswith("    ") and not section and (not found or not found[-1])
        if section == "Returns" and line == "Returns:":
            number += 1
            first, *rest = [text[4:] for text in block(4)]
            found += [f":returns: {inline(first)}", *(f"    {inline(text)}" if text else "" for text in rest), ""]
        elif several:
            number += 1
            rest = [inline(text) for text in block(5)]
            for own in several[1].split(", "):
                found += [f"    {own}: {inline(several[2])}", *rest]
        elif literal:
            taken = block(4)
            marked = before and before[-1].endswith("::")
            found += [*([] if marked else ["::", ""]), *taken, ""]
        else:
            number += 1
            found.append(inline(line))
    return found


def inline(line: str) -> str:
    """A line of text in which bars and plurals have no meaning of their own; examples stay as they are."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    return _PLURAL.sub(r"\1\\ ", _CODE.sub(lambda match: match[1] or r"\|", line))
