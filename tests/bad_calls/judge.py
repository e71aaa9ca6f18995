"""What a refusal is: an error that this package raises itself, before anything else fails."""

from __future__ import annotations

import ast
import functools
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = [ROOT / folder for folder in ("pyrodrop", "guides", "models", "analysis")]
ALLOWED = re.compile(r"\b(must|needs?|takes?|there (are|is)|lies|lie|at least|one of|instead|only)\b")
Table = Mapping[str, Sequence[tuple[Callable[[], Any], str]]]


def table(rows: Table) -> pytest.MarkDecorator:
    """The rows of a table as tests: by the name of a callable, bad calls of it and a fragment of each message."""
    each = [
        pytest.param(call, said, id=f"{name}-{n}")
        for name, calls in rows.items()
        for n, (call, said) in enumerate(calls)
    ]
    return pytest.mark.parametrize(("call", "said"), each)


def assert_refused(call: Callable[[], Any], said: str) -> None:
    """Raises a ValueError or TypeError of this package, which matches `said` and says what is allowed."""
    with pytest.raises((ValueError, TypeError), match=said) as raised:
        call()
    assert raised_here(raised.value), "another library raised it"
    assert ALLOWED.search(str(raised.value)), "does not say what is allowed"


def raised_here(error: BaseException) -> bool:
    """Whether a ``raise`` of this package made the error, and not a call that failed inside of another library."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(where.filename).resolve()
    return any(path.is_relative_to(folder) for folder in OURS) and where.lineno in _raising_lines(path)


@functools.cache
def _raising_lines(path: Path) -> frozenset[int]:
    raises = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    return frozenset(line for node in raises for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
