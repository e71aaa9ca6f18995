"""Compiled programs are found again by what they are made of, compared before use, and read only if they are ours."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pyrodrop.compiled import Untraceable, inductor
from pyrodrop.private_apis import Compiled

FIT = """
import sys, torch, pyrodrop
from pyrodrop import guides, likelihoods, models, priors
torch.set_num_threads(1)
torch.manual_seed(0)
model = models.MLP([2, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
x = torch.randn(50, 2)
fit = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1), (x, x[:, :1]), steps=20, engine="compiled", device="cpu")
print(fit.settings["engine"], "torch._dynamo" in sys.modules, fit.history.double().sum().item().hex())
"""


def a_fit(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIT],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYRODROP_CACHE": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
    )
    return done.stdout.split()


@pytest.mark.slow
def test_a_later_process_finds_the_program_and_makes_the_same_steps(tmp_path: Path) -> None:
    """Without TorchDynamo, and with the same bits."""
    engine, imported, bits = a_fit(tmp_path)
    assert (engine, imported) == ("compiled", "True")
    assert a_fit(tmp_path) == ["compiled", "False", bits]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs, in which a text stands for a library: the factor by which the program multiplies."""
    monkeypatch.setenv("PYRODROP_CACHE", str(tmp_path))
    monkeypatch.setattr(inductor, "load_program", lambda path: times(float(path.read_text())))
    return tmp_path / "programs"


def times(factor: float, file: Path | None = None) -> Compiled:
    return Compiled(lambda inputs: [factor * inputs[0]], file)


class Maker:
    """Makes programs that double, and checks that they do."""

    def __init__(self, folder: Path) -> None:
        self.made, self.file = 0, folder / "made"
        self.file.write_text("2.0")

    def __call__(self, *parts: object, x: Tensor | None = None) -> float:
        given = torch.ones(3) if x is None else x
        return float(inductor.found_or_made(parts, [given], self.make, self.check)(torch.ones(1))[0])

    def make(self) -> Compiled:
        self.made += 1
        return times(2.0, self.file)

    def check(self, program: Compiled) -> None:
        if program(torch.ones(1))[0] != 2:
            raise Untraceable("other numbers")


def test_a_program_is_made_once_for_what_it_is_made_of(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Maker(tmp_path)
    assert [program("a", 1), program("a", 1)] == [2, 2]
    assert program.made == 1
    others: list[Any] = [("a", 2), ("a", "1", "")]
    assert all(program(*parts) == 2 for parts in others)
    for x in (torch.ones(4), torch.ones(3).double(), torch.ones(6)[::2]):  # another shape, dtype, stride
        assert program("a", 1, x=x) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert program("a", 1) == 2
    assert program.made == 1 + 2 + 3 + 1
    assert len(list(kept.glob("*.so"))) == program.made


def test_a_wrong_program_is_made_again(kept: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = Maker(tmp_path)
    program("a")
    (file,) = kept.glob("*.so")
    file.write_text("3.0")
    with caplog.at_level(logging.INFO, "pyrodrop"):
        assert program("a") == 2
    assert "is not used: other numbers" in caplog.text
    assert (program.made, file.read_text()) == (2, "2.0")


def test_a_damaged_file_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRODROP_CACHE", str(tmp_path))
    program = Maker(tmp_path)
    for content in ("", "2.0"):
        program.file.write_text(content)
        assert [program("a"), program("a"), program.made] == [2, 2, 2]
        program.made = 0


def test_a_program_in_a_folder_that_others_may_write_to_is_not_loaded(kept: Path, tmp_path: Path) -> None:
    program = Maker(tmp_path)
    program("a")
    kept.chmod(0o777)
    assert [program("a"), program("a"), program.made] == [2, 2, 3]


def test_programs_of_long_ago_are_removed(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_MOST", 2)
    program = Maker(tmp_path)
    for number, name in enumerate("abc"):
        program(name)
        for file in kept.glob("*.so"):
            if file.stat().st_mtime > 1000:
                os.utime(file, (number + 1, number + 1))
    assert len(list(kept.glob("*.so"))) == 2
    program("b")
    program("c")
    assert program.made == 3
    program("a")
    assert program.made == 4
