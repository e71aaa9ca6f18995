"""Pyro programs that `pyrodrop.fit` trains as Pyro does: everyday ones, and random ones."""

from __future__ import annotations

import pyro
import pytest
import torch

from pyrodrop.analysis.lab.programs import PROGRAMS, Trained, by_pyro, fuzz
from pyrodrop.analysis.lab.programs.program import set_up, svi

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
CASES = [
    pytest.param(name, dtype, id=f"{name}-{str(dtype)[6:]}", marks=pytest.mark.more if name == "markov" else ())
    for name in PROGRAMS
    for dtype in TOLERANCE
]
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:pyro"
)  # also programs that Pyro would have done differently


def check(name: str, dtype: torch.dtype, engine: str, steps: int = 50) -> None:
    """Losses and parameters of `fit` are those of `SVI`."""
    program = PROGRAMS[name]
    expected = by_pyro(program, steps, 3, dtype)
    pyro.clear_param_store()
    model, guide, data = program.make(dtype)
    set_up(guide, data)
    trained, used = fuzz.fitted(model, guide, data, program.loss(), steps, 3, engine=engine, lr=program.lr)
    assert used == engine
    assert not fuzz.differs(trained, expected, TOLERANCE[dtype])


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_traced_programs_are_trained_as_by_pyro(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, "traced")


@pytest.mark.more
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "markov" else n for n in PROGRAMS])
def test_compiled_programs_are_trained_as_by_pyro(name: str) -> None:
    check(name, torch.float64, "compiled")


@pytest.mark.parametrize("name", ["vae", "cells"])
def test_fit_continues_what_svi_has_begun(name: str) -> None:
    program = PROGRAMS[name]
    found: list[Trained] = []
    for finish in ("svi", "fit"):
        pyro.clear_param_store()
        model, guide, data = program.make(torch.float64)
        svi(model, guide, data, program.loss(), 3, 1, lr=program.lr)
        if finish == "svi":
            found.append(svi(model, guide, data, program.loss(), 5, 2, lr=program.lr))
        else:
            found.append(fuzz.fitted(model, guide, data, program.loss(), 5, 2, engine="pyro", lr=program.lr)[0])
    assert not fuzz.differs(*found, 1e-10)


@pytest.mark.more
@pytest.mark.parametrize("seed", range(100))
def test_random_programs_are_trained_as_by_pyro(seed: int) -> None:
    found = fuzz.compare(seed)
    assert found.verdict in ("right", "trained by pyro"), f"{found.reason}; of {', '.join(found.contents)}"


@pytest.mark.more
@pytest.mark.parametrize("seed", [*range(0, 100, 10), 2001])
def test_random_programs_are_trained_as_by_pyro_when_compiled(seed: int) -> None:
    found = fuzz.compare(seed, "compiled")
    assert found.verdict in ("right", "trained by pyro"), f"{found.reason}; of {', '.join(found.contents)}"
