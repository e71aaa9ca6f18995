"""The benchmark of programs on a device, on the CPU: what it times, what fails, and what it has no time for."""

from __future__ import annotations

import pytest
import torch

from pyrodrop.analysis.lab.benchmarks import programs
from pyrodrop.analysis.lab.peers import numpyro_programs
from pyrodrop.analysis.lab.programs import LARGE, PROGRAMS


def test_steps_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, since all have their parameters in one store; one that fails has its error."""
    monkeypatch.setattr(programs, "CALL", 2)
    made = programs.steps_of("schools", "cpu")
    monkeypatch.setattr(
        programs, "steps_of", lambda *_: {n: made[n] for n in ("SVI.step", "traced")} | {"no": lambda: 1 / 0}
    )
    cells = programs.on_a_device("schools", 1, "cpu")
    assert all(cells[name]["seconds"] > 0 for name in ("SVI.step", "traced"))  # type: ignore[call-overload]
    assert cells["no"] == {"error": "ZeroDivisionError: division by zero"}


def test_the_large_programs_are_the_small_ones() -> None:
    data = LARGE["counts"].make(torch.float32)[2]
    assert data["counts"].shape == (5_000, 2_000)
    assert 0 < float((data["counts"] == 0).float().mean()) < 1
    assert LARGE["counts"].lr == PROGRAMS["counts"].lr


@pytest.mark.more
def test_steps_of_numpyro() -> None:
    pytest.importorskip("numpyro")
    data = PROGRAMS["counts"].make(torch.float32)[2]
    steps, parameters = numpyro_programs.steps_of("counts", data, "cpu")
    before = parameters()
    steps(2)
    assert not any(torch.equal(one, other) for one, other in zip(before, parameters(), strict=True))
