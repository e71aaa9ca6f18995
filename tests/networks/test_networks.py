"""Every kind of network in this folder against the brute-force meaning of its posterior.

A file is a kind of network, or a list of them (`pyrodrop.analysis.lab.networks.Case`); the contract is one for all
(`pyrodrop.analysis.lab.networks.contract`). Here each network has a thin slice of its cells; ``-m slow`` checks them all.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from pyrodrop.analysis.lab.networks import THIN, Bench, Case, Cell, Draws, few_cells, load, usual_cells

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch.vmap, over some operations

CASES = load(Path(__file__).parent)
# Cells that are wrong and are to be mended: patterns of their names, and why.
KNOWN: dict[str, str] = {}


def cases(choose: Any) -> list[Any]:
    """Parameters of a test: every cell that is chosen, marked where it is known to be wrong."""
    made = []
    for number, case in enumerate(CASES.values()):
        for cell in choose(case, number):
            name = f"{case.name}-{cell}"
            known = next((reason for pattern, reason in KNOWN.items() if fnmatch(name, pattern)), None)
            marks = [] if known is None else [pytest.mark.xfail(reason=known, strict=True)]
            made.append(pytest.param(case, cell, id=name, marks=marks))
    return made


_benches: dict[str, Bench] = {}


def check(case: Case, cell: Cell, draws: Draws) -> None:
    if case.missing():
        pytest.skip(case.missing())
    if case.name not in _benches:
        _benches.clear()  # only one network at a time stays in memory
        _benches[case.name] = Bench(case, draws)
    result = _benches[case.name].check(cell)
    assert result.kind != "wrong", result.note


def fewer_cells(case: Case, number: int) -> list[Cell]:
    """Every second of the few cells: of two networks the first and third, of the next two the others."""
    few = few_cells(case, number)
    return few if len(few) == 1 else few[number // 2 % 2 :: 2]


@pytest.mark.few(8)
@pytest.mark.parametrize(("case", "cell"), cases(fewer_cells))
def test_a_few_cells(case: Case, cell: Cell) -> None:
    check(case, cell, THIN)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_cells(case: Case, cell: Cell) -> None:
    check(case, cell, Draws())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The thousands of cells of `test_all_cells` are made where slow tests run: every collection would wait for them."""
    if metafunc.function is test_all_cells:
        slow = "not slow" not in metafunc.config.option.markexpr
        metafunc.parametrize(("case", "cell"), cases(lambda case, _: usual_cells(case)) if slow else [])


def test_there_are_networks_of_many_kinds() -> None:
    assert len(CASES) >= 35
    assert all(case.about for case in CASES.values())
