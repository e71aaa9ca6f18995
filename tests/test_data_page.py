"""The page docs/data.md: every loader and every table has a row."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pyrodrop import data
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.published import SPLITS
from pyrodrop.data.splits import Split, Splits
from pyrodrop.zoo.sources import SOURCES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def rows(first: str) -> list[list[str]]:
    """The cells of the rows of the table whose first column has this name."""
    table = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


ROWS = {ast.unparse(ast.parse(call)): row for row in rows("loader") for call in re.findall(r"`([^`]+)`", row[0])}


def loaders() -> dict[str, Callable[..., Any]]:
    """The functions of `pyrodrop.data` that return data, by name."""
    functions = {name: getattr(data, name) for name in data.__all__ if inspect.isfunction(getattr(data, name))}
    returned = {name: get_type_hints(inspect.unwrap(function))["return"] for name, function in functions.items()}
    return {name: functions[name] for name, what in returned.items() if what in (Split, Splits, Dataset)}


def choices(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """An argument that chooses between sources, with each of its values; that of `uci` is checked by a list."""
    if function is data.uci:
        return [("name", name) for name in SPLITS]
    hints = get_type_hints(inspect.unwrap(function))
    return [(name, value) for name, hint in hints.items() if get_origin(hint) is Literal for value in get_args(hint)]


def test_every_loader_and_every_table_has_a_row() -> None:
    expected = set()
    for name, function in loaders().items():
        for argument, value in choices(function) or [("", None)]:
            expected.add((name, argument, value))
    sources = set()
    for call in ROWS:
        tree = ast.parse(call, mode="eval").body
        if isinstance(tree, ast.Subscript):
            assert ast.literal_eval(tree.slice) in SOURCES
            continue
        assert isinstance(tree, ast.Call)
        function = loaders()[ast.unparse(tree.func)]
        arguments = inspect.signature(inspect.unwrap(function)).bind(
            *map(ast.literal_eval, tree.args),
            **{word.arg: ast.literal_eval(word.value) for word in tree.keywords if word.arg},
        )
        arguments.apply_defaults()
        chosen = [(name, value) for name, value in choices(function) if arguments.arguments[name] == value]
        sources.add((ast.unparse(tree.func), *(chosen[0] if chosen else ("", None))))
    assert sources == expected
    assert len(expected) > 13
