"""Names that users type."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def known(name: str, names: Collection[str], what: str) -> str:
    """`name`, if it is one of `names`; otherwise a ValueError that says which are, and which one is nearest."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1, 0.0)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no {what} is called {name!r}; there are {', '.join(names)}{hint}")
