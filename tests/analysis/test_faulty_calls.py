"""Faulty calls of the command line: each ends with one line on stderr and its status, and never with a traceback.

A call is its words, with FOLDER for a folder of the test, and what makes it faulty: a function that prepares that folder.
"""

from __future__ import annotations

import errno
import io
import json
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from pyrodrop import cli
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.failed import Failed

LONG = "n" * 300


@dataclass(frozen=True)
class Call:
    """Words of the command line, the status that they end with, a part of the message, and what makes them faulty."""

    words: str
    said: str
    status: int = 1
    prepare: Callable[[Path], Any] = field(default=lambda folder: None)


def file(name: str, content: str | bytes) -> Callable[[Path], None]:
    """A file of this name in the folder."""

    def prepare(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return prepare


def cell(content: Any, name: str = "yacht-bernoulli.json") -> Callable[[Path], None]:
    return file(name, json.dumps(content))


CELL = {
    "cell": {
        "data": "yacht", "guide": "bernoulli", "protocol": "quick", "precision": "auto", "penalty": "released",
        "splits": 2, "seed": 0,
    },
    "rmse": [1.0, 2.0],
    "log_density": [-1.0, -2.0],
    "seconds": 1.0,
}  # fmt: skip
UCI = "run uci --data yacht --splits 2 --out FOLDER"
FIG = "run kingma-fig1a --methods none --widths 10 --epochs 1 --seeds 2 --digits 100 --out FOLDER"
FIG_CELL = {
    "cell": {"method": "none", "width": 10, "epochs": 1, "seeds": 2, "seed": 0, "digits": 100},
    "errors": [1.0, 2.0],
    "seconds": 1.0,
}

USAGE = [  # one of every kind of mistake; a job checks its names and counts by the functions that are tested there
    Call(words, said, 2)
    for words, said in (
        ("run nothing", "no job or zoo entry is called 'nothing'.*see pyrodrop list"),
        ("run co2/nothing", "no .*entry is called 'co2/nothing'"),
        *((f"run {job} --seed -1", "seed") for job in JOBS),
        ("run co2 --steps 0", "steps"),
        ("run co2 --device gpu", "device"),
        ("run uci --data yatch", "no UCI set is called 'yatch'; .*did you mean 'yacht'"),
        ("run uci --splits 0", "splits is how many of the published splits to take and must be at least 1; got 0"),
        ("run kingma-fig1a --methods nun", "no dropout method is called 'nun'"),
        ("run concrete --sizes 11", "10, 25, 50, 100, 1000, 10000, each once"),
        ("run sparse --method log-normal", "method must be one of those of the recipe molchanov2017, sparse, ard"),
        ("run rotated-digit --digit 1135", "digit counts the 1135 ones of the test set from 0; got 1135"),
        ("run references --problems fong", "did you mean 'foong'"),
        ("show", "parameter ENTRY requires an argument"),
        ("show uci/yaht", "no zoo entry is called 'uci/yaht'"),
        ("show uci/yacht --all", "Unknown option: --all"),
    )
]

FILES = [
    Call("run co2 --out /proc/nothing", "/proc/nothing"),
    Call(f"run co2 --out FOLDER/{LONG}", "too long"),
    Call("run co2/mean-field --out FOLDER", "FOLDER|folder", prepare=lambda folder: folder.write_text("")),
    *(
        Call("run co2/mean-field --steps 20000 --out FOLDER", "training.safetensors|the run in", prepare=prepare)
        for prepare in (
            file("training.safetensors", b"\x10\0\0\0\0\0\0\0{}"),
            file("training.safetensors", "no tensors" * 1000),
        )
    ),
    Call(UCI, "yacht-bernoulli.json", prepare=file("yacht-bernoulli.json", "{")),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "cell": {**CELL["cell"], "seed": 1}})),  # type: ignore[dict-item]
    Call(FIG, "none-10.json", prepare=cell({**FIG_CELL, "errors": "many"}, "none-10.json")),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without --out write below the working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def line(said: str) -> str:
    """The one line on stderr."""
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("pyrodrop: ")
    assert lines[0].isprintable()
    return lines[0]


@pytest.mark.few(20)
@pytest.mark.parametrize("call", [*USAGE, *FILES], ids=lambda call: call.words.replace(LONG, "LONG"))
def test_one_line_and_a_status(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    call.prepare(folder)
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    status = cli.main([word.replace("FOLDER", str(folder)) for word in call.words.split()])
    said = capsys.readouterr().err
    assert status == call.status, said
    assert re.search(call.said, line(said))
    assert status == 1 or not any((tmp_path / "work").iterdir()), "no folder of a run was made"
    assert before.items() <= {p: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}.items()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (FloatingPointError("the loss is no longer finite"), 1, "the loss is no longer finite"),
        (requests.HTTPError("404 Client Error"), 1, "404"),
        (OSError(errno.ENOSPC, "No space left on device", "results.json"), 1, "results.json: No space left on device$"),
        (Failed("cell.json is broken"), 1, "^pyrodrop: cell.json is broken$"),
        (ValueError("two\nlines \x1b[2J"), 2, r"^pyrodrop: two lines \\x1b\[2J$"),
        (KeyboardInterrupt("go on with it"), 130, "interrupted: go on with it$"),
    ],
)
def test_errors_by_their_kind(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "_command", fails)
    assert cli.main(["list"]) == status
    assert re.search(said, line(capsys.readouterr().err))


def test_an_unexpected_error_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("rmse")

    monkeypatch.setattr(cli, "_command", fails)
    assert cli.main(["list"]) == 1
    assert re.fullmatch(r"Traceback \(most recent call last\).*KeyError: 'rmse'\n", capsys.readouterr().err, re.DOTALL)


def test_a_reader_that_went_away_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    assert cli.main(["list"]) == 141
    assert capsys.readouterr().err == ""


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit on the size of files, which acts like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_during_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "published", "--out", str(tmp_path / "run")]
    with files_of_at_most(900):
        assert cli.main(words) == 1
    assert f"{tmp_path}/run" in line(capsys.readouterr().err)
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {".lock", "run.json", "published.md"}
    assert cli.main(words) == 0
