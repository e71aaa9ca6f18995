"""The pieces of `make gpu`, on a CPU: what is done is skipped, and what fails is tried again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrodrop.analysis.jobs import JOBS
from pyrodrop.analysis.lab.pieces import gpu
from pyrodrop.analysis.lab.pieces.gpu import Piece, drive

# A training of four steps, whose process ends after the second: `python -m timeit` is a module of Python that runs code.
STEPS = """
import json, pathlib
folder = pathlib.Path("{folder}")
for step in range(4):
    file = folder / f"step-{{step}}.json"
    if not file.exists():
        file.write_text("1")
        if step == 1:
            raise SystemExit("interrupted")
(folder / "result.json").write_text(json.dumps(dict(steps=4, device="{device}")))
"""


def piece(name: str, code: str, **settings: Any) -> Piece:
    return Piece(name, ("timeit", "-n1", "-r1", code), **settings)


def answers(number: int = 1) -> Piece:
    return piece("answers", f"open('{{folder}}/result.json', 'w').write('{{{{\"answer\": {number}}}}}')")


def test_what_is_done_is_skipped_and_what_fails_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        piece("fails", "print('so far'); raise SystemExit(3)"),
        piece("silent", "pass"),
        piece("steps", STEPS),
        answers(),
    ]
    assert drive(chosen, tmp_path, "cpu") == 1
    assert sorted(file.name for file in tmp_path.glob("*.json")) == ["answers.json"]
    assert "so far" in (tmp_path / "fails" / "log.txt").read_text()
    record = json.loads((tmp_path / "answers.json").read_text())
    assert record["results"] == {"result.json": {"answer": 1}}
    assert {"python", "pyrodrop", "torch"} <= record["identity"]["versions"].keys()
    capsys.readouterr()
    assert drive(chosen[2:], tmp_path, "cpu") == 0
    assert "answers: done before" in capsys.readouterr().out
    assert json.loads((tmp_path / "steps.json").read_text())["results"]["result.json"] == {"steps": 4, "device": "cpu"}


def test_a_piece_that_takes_too_long_is_ended_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = piece("slow", "import time; time.sleep(60)")
    assert drive([slow, answers()], tmp_path, "cpu", seconds=2) == 1
    printed = capsys.readouterr().out
    assert "slow: failed, ended after 2 s" in printed
    assert "answers: failed, no time was left for it" in printed
    assert drive([answers()], tmp_path, "cpu") == 0


def test_another_version_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drive([answers()], tmp_path, "cpu") == 0
    monkeypatch.setattr(gpu, "versions", lambda: {"torch": "9"})
    assert drive([answers(2)], tmp_path, "cpu") == 0
    assert json.loads((tmp_path / "answers.json").read_text())["results"]["result.json"]["answer"] == 2


def test_wrong_calls_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for words, status, message in (
        ([], 1, "there is no GPU"),
        (["--device", "cpu", "--only", "step"], 2, "no piece is called 'step'"),
        (["--device", "tpu"], 2, "device must be one of"),
    ):
        assert gpu.main(words) == status
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_every_piece_starts_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = gpu.pieces()
    assert len({piece.name for piece in pieces}) == len(pieces)
    assert {piece.arguments[2] for piece in pieces if piece.arguments[0] == "pyrodrop"} <= JOBS.keys()
    assert gpu.main(["--list"]) == 0
    assert capsys.readouterr().out.count("\n") == len(pieces)


@pytest.mark.slow
def test_small_pieces_run_on_a_cpu(tmp_path: Path, data_folder: Path) -> None:
    """The commands themselves, some minutes."""
    assert gpu.main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == 0
    assert {file.stem for file in tmp_path.glob("*.json")} == {piece.name for piece in gpu.pieces()}
