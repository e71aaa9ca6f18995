"""Faulty calls of the command line: each ends with one line on stderr and its status, and never with a traceback.

A call is its words, with FOLDER for a folder of the test, and what makes it faulty: a function that prepares that folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pyrodrop import cli

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
        file.create_dataset("one/predictions/pit", shape=(10**12,), dtype="f8", chunks=(10**5,))


def truncated(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["one/predictions/pit"] = np.linspace(0, 1, 5000)
    path.write_bytes(path.read_bytes()[:20_000])


def figure(write: Callable[[Path], Any]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        run_of(folder)
        write(folder / "figure.png")

    return prepare


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

USAGE = [
    Call(words, said, 2)
    for words, said in (
        ("frobnicate", "no command is called 'frobnicate'"),
        ("run", "needs the name of a job"),
        ("run nothing", "no job is called 'nothing'"),
        ("run co2/nothing", "no .*entry is called 'co2/nothing'"),
        ("run co2 --colour red", "--colour"),
        ("run co2 --seed one", "seed"),
        ("run co2 --seed -1", "seed"),
        ("run co2 --seed 99999999999999999999999", "seed"),
        ("run co2 --steps 0", "steps"),
        ("run co2 --steps 1.5", "steps"),
        ("run co2 --preset best", "preset"),
        ("run co2 --device gpu", "device"),
        ("run co2 --device cuda:99", "device|cuda"),
        ("run co2 --out", "out"),
        ("run co2 --out=", "out"),
        ("run uci --data", "data"),
        ("run uci --data=[]", "data"),
        ("run uci --data=[1", "data"),
        ("run uci --data nothing", "no UCI set is called 'nothing'"),
        ("run uci --guides", "guides"),
        ("run uci --guides nothing", "nothing"),
        ("run uci --splits 0", "splits"),
        ("run uci --seed -1", "seed"),
        ("run kingma-fig1a --widths 0", "widths"),
        ("run kingma-fig1a --widths ten", "widths"),
        ("run kingma-fig1a --widths", "widths"),
        ("run kingma-fig1a --seeds 0", "seeds"),
        ("run kingma-fig1a --digits 0", "digits"),
        ("run kingma-table1 --seed -1", "seed"),
        ("run sbc --count 0", "count"),
        ("run sbc --num-draws 0", "num.draws"),
        ("run sbc --posteriors", "posteriors"),
        ("run sbc --posteriors exact --seed -1", "seed"),
        ("run estimators --seconds nan", "seconds"),
        ("run estimators --seconds 0", "seconds"),
        ("run concrete --seeds 0", "seeds"),
        ("run concrete --seed -3", "seed"),
        ("run sparse --epochs 0", "epochs"),
        ("run sparse --digits -5", "digits"),
        ("run rotated-digit --digit 99999", "digit"),
        ("run rotated-digit --turn nan", "turn"),
        ("run rotated-digit --steps -1", "steps"),
        ("run trained-network --epochs 0", "epochs"),
        ("run trained-network --draws 0", "draws"),
        ("run trained-network --steps 0", "steps"),
        ("run references --problems mars", "mars"),
        ("run references --seed -1", "seed"),
        ("run critiques --panels", "panels"),
        ("run critiques --seed -1", "seed"),
        ("run co2/mean-field --seed -1", "seed"),
        ("run co2/mean-field --steps 0", "steps"),
        ("list extra", "takes no arguments"),
        ("show", "name of one zoo entry"),
        ("show nothing", "nothing"),
        ("check", "names of zoo entries"),
        ("check nothing", "nothing"),
        ("report", "folder"),
        ("report FOLDER --nope", "nope"),
        ("compare", "folders of runs"),
    )
]

RESULTS_FILES = [
    Call(f"{command} FOLDER", said, prepare=prepare)
    for prepare, said in (
        (lambda folder: folder.mkdir(), "must have a results.json"),
        (lambda folder: (folder / "results.json").mkdir(parents=True), "results.json"),
        (lambda folder: folder.write_text("a file"), "must have a results.json|is a file"),
        (text(""), "results.json"),
        (text('{"models": {"one":'), "results.json"),
        (text(b"\xff\xfe\x00"), "results.json"),
        (text("[1, 2]"), "results.json"),
        (text("[" * 100_000), "results.json"),
        (text('{"models": ' + "9" * 5000 + "}"), "results.json"),
        (text(json.dumps(RESULTS).replace("-1.0", "NaN")), "results.json"),
        (text(json.dumps(RESULTS).replace("-1.0", "1e999")), "results.json"),
        (text(json.dumps(RESULTS).replace("one", "\\ud800")), "results.json"),
        (text(json.dumps(RESULTS).replace("one", "\\u001b[2J")), "results.json"),
        (results({**RESULTS, "models": [1]}), "models"),
        (results({**RESULTS, "models": {"one": 3}}), "one"),
        (row(log_density="high"), "log_density"),
        (row(log_density=True), "log_density"),
        (row(rmse=[1]), "rmse"),
        (results({**RESULTS, "settings": [1]}), "settings"),
        (results({**RESULTS, "settings": {"data": ["waves"]}}), "data"),
        (draws(lambda path: path.write_bytes(b"")), "draws.nc"),
        (draws(lambda path: path.write_text("no netCDF")), "draws.nc"),
        (draws(lambda path: path.mkdir()), "draws.nc"),
        (draws(truncated), "draws.nc"),
        (draws(a_bomb), "draws.nc"),
        (netcdf(np.ones((3, 3)), np.ones((3, 3))), "draws.nc"),
        (netcdf(np.array([b"a", b"b"]), np.array([b"a", b"b"])), "draws.nc"),
        (netcdf(np.array([np.nan, 0.5]), np.array([np.nan, 0.5])), "draws.nc"),
    )
    for command in ("compare", "report")
]

FILES = [
    *RESULTS_FILES,
    Call("compare FOLDER", "models", prepare=results({"rows": 1})),
    Call("compare FOLDER", "models", prepare=results({**RESULTS, "models": {}})),
    Call("compare FOLDER", "no held-out log dens", prepare=row(log_density=None)),
    Call(f"compare {LONG}", "too long"),
    Call(f"report {LONG}", "too long"),
    Call("report FOLDER/nowhere", "must have a results.json"),
    Call("report FOLDER -o FOLDER", "folder|directory", prepare=run_of),
    Call("report FOLDER -o FOLDER/no/page.html", "folder of the report must exist", prepare=run_of),
    Call(f"report FOLDER -o FOLDER/{LONG}", "too long", prepare=run_of),
    Call("report FOLDER -o /proc/page.html", "/proc", prepare=run_of),
    Call("report FOLDER", "figure.png", prepare=figure(lambda path: path.mkdir())),
    Call("report FOLDER", "figure.png", prepare=figure(lambda path: path.write_text("<script>"))),
    Call("report FOLDER", "figure.png", prepare=figure(lambda path: path.symlink_to("/etc/passwd"))),
    Call("report FOLDER", "figure.png", prepare=figure(lambda path: path.symlink_to("nowhere"))),
    Call("run co2 --out FOLDER", "FOLDER|folder", prepare=lambda folder: folder.write_text("")),
    Call("run co2 --out /proc/nothing", "/proc/nothing"),
    Call(f"run co2 --out FOLDER/{LONG}", "too long"),
    Call("run co2/mean-field --out FOLDER", "FOLDER|folder", prepare=lambda folder: folder.write_text("")),
    Call(
        "run co2/mean-field --steps 20000 --out FOLDER",
        "training.safetensors",
        prepare=file("training.safetensors", ""),
    ),
    Call(
        "run co2/mean-field --steps 20000 --out FOLDER",
        "training.safetensors",
        prepare=file("training.safetensors", b"\x10\0\0\0\0\0\0\0{}"),
    ),
    Call(
        "run co2/mean-field --steps 20000 --out FOLDER",
        "training.safetensors",
        prepare=lambda folder: (folder / "training.safetensors").mkdir(parents=True),
    ),
    Call(UCI, "yacht-bernoulli.json", prepare=file("yacht-bernoulli.json", "{")),
    Call(UCI, "yacht-bernoulli.json", prepare=file("yacht-bernoulli.json", "")),
    Call(UCI, "yacht-bernoulli.json", prepare=lambda folder: (folder / "yacht-bernoulli.json").mkdir(parents=True)),
    Call(UCI, "yacht-bernoulli.json", prepare=cell([1])),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({"cell": CELL["cell"]})),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "rmse": ["low", "high"]})),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "rmse": [float("nan"), 1.0]})),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "rmse": [1.0]})),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "rmse": []})),
    Call(UCI, "yacht-bernoulli.json", prepare=cell({**CELL, "cell": {**CELL["cell"], "seed": 1}})),  # type: ignore[dict-item]
    Call(FIG, "none-10.json", prepare=file("none-10.json", "{")),
    Call(FIG, "none-10.json", prepare=cell({"cell": FIG_CELL["cell"]}, "none-10.json")),
    Call(FIG, "none-10.json", prepare=cell({**FIG_CELL, "errors": "many"}, "none-10.json")),
    Call(FIG, "none-10.json", prepare=cell({**FIG_CELL, "seconds": None}, "none-10.json")),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without --out write below the working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def ends(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line with which a faulty call ends; its status is checked."""
    folder = tmp_path / "run"
    call.prepare(folder)
    status = cli.main([word.replace("FOLDER", str(folder)) for word in call.words.split()])
    captured = capsys.readouterr()
    assert status == call.status, captured.err
    return captured.err


def shown(call: Call) -> str:
    return call.words.replace(LONG, "LONG")


@pytest.mark.parametrize("call", [*USAGE, *FILES], ids=shown)
def test_one_line_and_a_status(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    said = ends(call, tmp_path, capsys)
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("pyrodrop: ")
    assert re.search(call.said, lines[0]), said
