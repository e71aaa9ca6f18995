"""The benchmark of programs on a device, on the CPU: what it times, what fails, and what it has no time for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pyrodrop.analysis.lab.benchmarks import programs
from pyrodrop.analysis.lab.peers import numpyro_programs
from pyrodrop.analysis.lab.programs import LARGE, PROGRAMS


def test_steps_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SECONDS", 0.01)
    monkeypatch.setattr(programs, "VARIANTS", ("SVI.step", "traced", "no engine"))
    monkeypatch.setattr(programs, "COMPILATION", {("vae", "traced"): 1000.0})
    programs.main(["counts", "vae"], rounds=1, out=tmp_path / "out.json", device="cpu", small=True)
    rows = json.loads((tmp_path / "out.json").read_text())["programs"]
    for name, variant in (("counts", "SVI.step"), ("counts", "traced"), ("vae", "SVI.step")):
        assert rows[name][variant]["step us"] > 0
    assert rows["vae"]["traced"] == {"failed": "not begun, to end within 70 s"}
    assert "no engine" in rows["counts"]["no engine"]["failed"]


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
