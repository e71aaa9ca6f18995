"""Faulty calls of the command line: each ends with one line on stderr and its status, and never with a traceback.

A call is its words, with FOLDER for a folder of the test, and what makes it faulty: a function that prepares that folder.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import requests
import torch

from pyrodrop import cli
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.failed import Failed

ROW = {"log_density": -1.0, "rmse": 2.0, "crps": 1.0, "coverage_50": 0.5, "coverage_95": 0.95, "seconds": 1.0}
RESULTS = {"models": {"one": ROW, "two": {**ROW, "log_density": -2.0}}, "settings": {"data": "waves"}}
LONG = "n" * 300


@dataclass(frozen=True)
class Call:
    """Words of the command line, the status that they end with, a part of the message, and what makes them faulty."""

    words: str
    said: str
    status: int = 1
    prepare: Callable[[Path], Any] = field(default=lambda folder: None)


def run_of(folder: Path, results: Any = None, text: str | bytes | None = None) -> None:
    """A run's folder with this content of results.json."""
    folder.mkdir(exist_ok=True)
    content = json.dumps(RESULTS if results is None else results) if text is None else text
    (folder / "results.json").write_bytes(content.encode() if isinstance(content, str) else content)


def results(content: Any) -> Callable[[Path], None]:
    return lambda folder: run_of(folder, content)


def text(content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: run_of(folder, text=content)


def row(**change: Any) -> Callable[[Path], None]:
    return results({**RESULTS, "models": {"one": {**ROW, **change}}})


def draws(write: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A run's folder with this draws.nc."""

    def prepare(folder: Path) -> None:
        run_of(folder)
        write(folder / "draws.nc")

    return prepare


def netcdf(pit: Any, density: Any = None) -> Callable[[Path], None]:
    """A draws.nc with these values per observation for both models."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for model in ("one", "two"):
                for name, values in {"pit": pit, "log_density": density}.items():
                    if values is not None:
                        file[f"{model}/predictions/{name}"] = values

    return draws(write)


def a_bomb(path: Path) -> None:
    """A small file with a variable of 8 TB."""
    with h5py.File(path, "w") as file:
        file.create_dataset("one/predictions/log_density", shape=(10**12,), dtype="f8", chunks=(10**5,))


def elsewhere(path: Path) -> None:
    """A variable whose values are the bytes of another file."""
    with h5py.File(path, "w") as file:
        place = [("/etc/passwd", 0, 80)]
        file.create_dataset("one/predictions/log_density", shape=(10,), dtype="f8", external=place)


def truncated(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["one/predictions/pit"] = np.linspace(0, 1, 5000)
    path.write_bytes(path.read_bytes()[:20_000])


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
        ("run co2/relu", "no job or zoo entry is called 'co2/relu'; .*did you mean 'co2/mc-dropout-relu'"),
        *((f"run {job} --seed -1", "seed") for job in JOBS),
        ("run co2 --seed 99999999999999999999999", "seed"),
        ("run co2 --steps 0", "steps"),
        ("run co2 --device gpu", "device"),
        ("run co2 --device cuda:99", "device|cuda"),
        ("run uci --data=[1", "no UCI set is called '\\[1'"),
        ("run uci --data yatch", "no UCI set is called 'yatch'; .*did you mean 'yacht'"),
        ("run uci --guides bernouli", "no posterior of the UCI table is called 'bernouli'; .*did you mean 'bernoulli'"),
        ("run uci --splits 0", "splits is how many of the published splits to take and must be at least 1; got 0"),
        ("run kingma-fig1a --methods nun", "no dropout method is called 'nun'"),
        ("run kingma-fig1a --widths 0", "widths must be at least 1; got 0"),
        ("run sbc --posteriors", "posteriors"),
        ("run sbc --posteriors low-rnak", "no posterior is called 'low-rnak'.*did you mean 'low-rank'"),
        ("run concrete --sizes 11", "10, 25, 50, 100, 1000, 10000, each once"),
        ("run sparse --digits -5", "digits"),
        ("run sparse --method log-normal", "method must be one of those of the recipe molchanov2017, sparse, ard"),
        ("run rotated-digit --digit 1135", "digit counts the 1135 ones of the test set from 0; got 1135"),
        ("run rotated-digit --turn nan", "turn"),
        ("run references --problems fong", "did you mean 'foong'"),
        ("run critiques --panels osbant", "no panel is called 'osbant'"),
        ("run active-learning --labels 19", "labels is the number of labels of MNIST"),
        ("run remedies --sections spraed", "spraed"),
        ("run co2/mean-field --steps 0", "steps"),
        ("show", "parameter ENTRY requires an argument"),
        ("show uci/yaht", "no zoo entry is called 'uci/yaht'"),
        ("check --all", "Unknown option: --all"),
    )
]

RESULTS_FILES = [  # what a JSON file may be is tested with `read_record`
    Call("compare FOLDER", said, prepare=prepare)
    for prepare, said in (
        (lambda folder: folder.mkdir(), "must have a results.json"),
        (lambda folder: folder.write_text("a file"), "must have a results.json|is a file"),
        (text('{"models": {"one":'), "results.json"),
        (results({**RESULTS, "models": [1]}), "models"),
        (row(log_density="high"), "log_density"),
        (results({**RESULTS, "settings": {"data": ["waves"]}}), "data"),
        (draws(lambda path: path.write_text("no netCDF")), "draws.nc"),
        (draws(truncated), "draws.nc"),
        (netcdf(np.ones((3, 3)), np.ones((3, 3))), "draws.nc"),
        (netcdf(np.array([b"a", b"b"]), np.array([b"a", b"b"])), "draws.nc"),
        (netcdf(np.array([np.nan, 0.5]), np.array([np.nan, 0.5])), "draws.nc"),
    )
]

FILES = [
    *RESULTS_FILES,
    Call("compare FOLDER", "models", prepare=results({"rows": 1})),
    Call("compare FOLDER", "models", prepare=results({**RESULTS, "models": {}})),
    Call("compare FOLDER", "no held-out log dens", prepare=row(log_density=None)),
    Call(f"compare {LONG}", "too long"),
    Call("compare FOLDER", "draws.nc", prepare=draws(a_bomb)),
    Call("compare FOLDER", "draws.nc", prepare=draws(elsewhere)),
    Call("run co2 --out FOLDER", "FOLDER|folder", prepare=lambda folder: folder.write_text("")),
    Call("run co2 --out /proc/nothing", "/proc/nothing"),
    Call(f"run co2 --out FOLDER/{LONG}", "too long"),
    Call("run co2/mean-field --out FOLDER", "FOLDER|folder", prepare=lambda folder: folder.write_text("")),
    *(
        Call("run co2/mean-field --steps 20000 --out FOLDER", "training.safetensors|the run in", prepare=prepare)
        for prepare in (
            file("training.safetensors", ""),
            file("training.safetensors", b"\x10\0\0\0\0\0\0\0{}"),
            file("training.safetensors", "no tensors" * 1000),
            lambda folder: (folder / "training.safetensors").mkdir(parents=True),
        )
    ),
    Call(UCI, "yacht-bernoulli.json", prepare=file("yacht-bernoulli.json", "{")),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({"cell": CELL["cell"]})),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "rmse": [1.0]})),
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


def import_cut_off() -> ImportError:
    """The error that an interrupted import ends in."""
    error = ImportError("cannot load module more than once per process")
    error.__context__, error.__suppress_context__ = KeyboardInterrupt(), True  # as `from None`
    return error


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (FloatingPointError("the loss is no longer finite"), 1, "the loss is no longer finite"),
        (MemoryError(), 1, "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "out of memory"),
        (requests.ConnectionError("no route to host"), 1, "no route to host"),
        (requests.HTTPError("404 Client Error"), 1, "404"),
        (ConnectionError("data.txt could not be downloaded"), 1, "could not be downloaded"),
        (OSError(errno.ENOSPC, "No space left on device", "results.json"), 1, "results.json: No space left on device$"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (Failed("cell.json is broken"), 1, "^pyrodrop: cell.json is broken$"),
        (ValueError("two\nlines \x1b[2J"), 2, r"^pyrodrop: two lines \\x1b\[2J$"),
        (KeyError("rmse"), 1, "KeyError: 'rmse'.*--debug"),
        (AssertionError(), 1, "AssertionError"),
        (KeyboardInterrupt("go on with it"), 130, "interrupted: go on with it$"),
        (import_cut_off(), 130, "interrupted$"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_errors_by_their_kind(
    error: BaseException,
    status: int,
    said: str,
    debug: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "_command", fails)
    assert cli.main(["list", "--debug"] if debug else ["list"]) == status
    shown = capsys.readouterr().err
    if debug:
        assert shown.startswith("Traceback (most recent call last)")
        shown = "pyrodrop: " + shown.rpartition("pyrodrop: ")[2]
    assert re.search(said, line(shown))


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
    words = [
        "run",
        "sbc",
        "--posteriors",
        "exact",
        "--count",
        "100",
        "--num_draws",
        "19",
        "--out",
        str(tmp_path / "run"),
    ]
    with files_of_at_most(900):
        assert cli.main(words) == 1
    assert f"{tmp_path}/run" in line(capsys.readouterr().err)
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {".lock", "run.json"}
    assert cli.main(words) == 0


def test_names_in_a_file_are_shown_and_not_interpreted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Markup of the terminal's tables."""
    names = ("[/bold] [link=https://a.b]c", "<script>alert(1)</script>", "$\\frac{$", "../../etc/passwd")
    folder = tmp_path / "run"
    models = {name: {**ROW, "<i>": "<u>", "log_density": -float(n)} for n, name in enumerate(names)}
    run_of(folder, {"models": models, "settings": {"data": "<b>[/x]"}, "<s>": {"<em>": {"<q>": 1}}, "list": ["<p>"]})
    assert cli.main(["compare", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "[/bold] [link=https://a.b]c" in shown
    assert "<b>[/x]" in shown


@pytest.mark.slow
def test_a_closed_pipe_and_a_full_disk_behind_stdout(tmp_path: Path) -> None:
    """In a process of its own, as the interpreter flushes what is left at its end."""
    command = [sys.executable, "-P", "-m", "pyrodrop", "list"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "disk is full" in line(ended.stderr) or "No space left" in line(ended.stderr)
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")
