"""The commands of what waits for a GPU, on a CPU with tiny pieces: skip, go on, failures, interruptions, records."""

from __future__ import annotations

import functools
import inspect
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from pyrodrop import cli
from pyrodrop.analysis import experiments
from pyrodrop.analysis.benchmarks import predict, replicates, steps, timing
from pyrodrop.analysis.pieces import runner
from pyrodrop.analysis.pieces import zoo as whole_zoo
from pyrodrop.analysis.pieces.gpu import LARGE_SETS, main, pieces
from pyrodrop.analysis.pieces.runner import Piece, drive
from pyrodrop.analysis.zoo import train
from pyrodrop.zoo import ENTRIES

# A training of four parts, whose process ends after the second: `python -m timeit` is a module of Python that runs code.
PARTS = """
import json, pathlib
folder = pathlib.Path("{folder}")
for part in range(4):
    file = folder / f"part-{{part}}.json"
    if not file.exists():
        file.write_text("1")
        if part == 1:
            raise SystemExit("broken off")
(folder / "result.json").write_text(json.dumps(dict(parts=4, device="{device}")))
"""


def piece(name: str, code: str, **settings: Any) -> Piece:
    return Piece(name, ("timeit", "-n1", "-r1", code), **settings)


def answers(number: int = 1) -> Piece:
    return piece("answers", f"open('{{folder}}/result.json', 'w').write('{{{{\"answer\": {number}}}}}')")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def content(out: Path, name: str) -> dict[str, Any]:
    return json.loads((out / f"{name}.json").read_text())  # type: ignore[no-any-return]


def test_what_is_done_is_skipped_and_what_fails_is_left_behind(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [
        piece("fails", "print('so far'); raise SystemExit('no memory')"),
        piece("silent", "pass"),
        piece("broken", "open('{folder}/result.json', 'w').write('half')"),
        answers(),
    ]
    assert drive(chosen, out, "cpu") == 1
    assert [content(out, p.name)["state"] for p in chosen] == ["failed", "failed", "failed", "done"]
    assert content(out, "fails")["why"] == "status 1: SystemExit: no memory"
    assert "so far" in (out / "fails" / "log.txt").read_text()
    assert content(out, "silent")["why"].startswith("it wrote no result.json")
    assert "result.json" in content(out, "broken")["why"]
    done = content(out, "answers")
    assert done["results"] == {"result.json": {"answer": 1}}
    assert done["identity"]["device"] == "cpu"
    assert done["processor"]
    assert {"python", "pyrodrop", "torch"} <= done["identity"]["versions"].keys()

    (out / "answers" / "result.json").unlink()  # would be made anew
    capsys.readouterr()
    assert drive(chosen[3:], out, "cpu") == 0
    assert "answers: done before" in capsys.readouterr().out
    assert content(out, "answers") == done


def test_a_piece_that_was_broken_off_goes_on(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = piece("parts", PARTS)
    assert drive([parts], out, "cpu") == 1
    first = content(out, "parts")
    assert len(list((out / "parts").glob("part-*"))) == 2
    (out / "parts.json").write_text(json.dumps(first | {"seconds": 3600.0}))
    capsys.readouterr()
    assert drive([parts], out, "cpu") == 0
    last = content(out, "parts")
    assert last["state"] == "done"
    assert "all together: 1:00:" in capsys.readouterr().out, "of both calls"
    assert last["seconds"] > first["seconds"] > 0
    assert last["results"] == {"result.json": {"parts": 4, "device": "cpu"}}


def test_a_record_of_an_older_version_is_read(out: Path) -> None:
    """As it was when pieces had attempts."""
    assert drive([answers()], out, "cpu") == 0
    older = content(out, "answers") | {"attempts": 1}
    (out / "answers.json").write_text(json.dumps(older))
    assert drive([answers()], out, "cpu") == 0
    assert content(out, "answers") == older


def test_results_of_another_version_are_put_aside(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drive([answers()], out, "cpu") == 0
    monkeypatch.setattr(runner, "versions", lambda: {"torch": "9"})
    for number in (1, 2):
        assert drive([answers(number)], out, "cpu") == 0
        assert content(out, f"answers.{number}")["results"]["result.json"]["answer"] == max(1, number - 1)
        assert (out / f"answers.{number}" / "result.json").exists()
    assert content(out, "answers")["results"]["result.json"]["answer"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_that_a_piece_has_started_and_leaves_a_record(out: Path, number: int) -> None:
    """Also a process that ignores the request."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    start = f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}])"
    code = f"{start}; print('child', p.pid, flush=True); os.kill(os.getppid(), {int(number)}); p.wait()"
    begun = time.perf_counter()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            drive([piece("interrupts", code)], out, "cpu")
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - begun < 30
    assert content(out, "interrupts")["state"] == "broken off"
    assert content(out, "interrupts")["seconds"] > 0
    found = re.search(r"^child (\d+)", (out / "interrupts" / "log.txt").read_text(), re.MULTILINE)
    assert found
    process = Path(f"/proc/{found[1]}")
    for _ in range(50):
        if not process.exists():
            break
        time.sleep(0.1)
    assert not process.exists() or "Z" in (process / "stat").read_text()


def test_one_process_at_a_time(out: Path, tmp_path: Path) -> None:
    out.mkdir()
    with FileLock(out / ".lock"), pytest.raises(ValueError, match="another run is writing to"):
        drive([answers()], out, "cpu")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="results need a folder that can be written to"):
        drive([answers()], tmp_path / "file", "cpu")
    (out / "answers.json").write_text("{")
    with pytest.raises(ValueError, match="answers.json"):
        drive([answers()], out, "cpu")


@pytest.mark.more
def test_results_of_tests_are_counted(tmp_path: Path) -> None:
    """As pytest writes them."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_one(): pass\ndef test_two(): assert False\n@pytest.mark.skip\ndef test_three(): pass\n"
    )
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml", "test_some.py"]
    subprocess.run(run, cwd=tmp_path, capture_output=True, check=False)
    found = runner.junit(tmp_path / "junit.xml")
    assert found.pop("seconds") >= 0
    assert found == {"tests": 3, "failures": 1, "errors": 0, "skipped": 1, "broken": ["test_some::test_two"]}


def test_without_a_gpu_a_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(p.name in shown for p in pieces())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "step"], "no piece is called 'step'.*did you mean 'steps'"),
        (["--device", "tpu"], "device must be one of"),
    ],
)
def test_wrong_calls(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


def taken(command: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that a command's function is called with; the function itself does not run."""
    given: dict[str, Any] = {}

    def instead(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> None:
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            given.update(bound.arguments)

        return called

    module, *options = command
    if module == "pyrodrop" and options[1] in ENTRIES:
        monkeypatch.setattr(train, "run_entry", instead(train.run_entry))
        assert cli.main(options) == 0
        return given
    if module == "pyrodrop":
        job = experiments.JOBS[options[1]].named(options[1])
        function = instead(job.function)
        monkeypatch.setattr(type(job), "function", property(lambda _: function))
        assert cli.main(options) == 0
        return given
    benchmark = {m.__name__: m for m in (predict, replicates, steps)}[module]
    timing.command(instead(benchmark.main), options)
    return given


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("piece", pieces()[1:], ids=lambda p: p.name)
def test_commands_are_read_by_what_they_start(
    piece: Piece, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word.format(device="cpu", folder=tmp_path / piece.name) for word in piece.command(small=small)]
    given = taken(words, monkeypatch)
    assert str(given["device"]) == "cpu"
    if piece.name.startswith("replicates-"):
        assert given["count"] == (8 if small else int(piece.name.partition("-")[2]))
    if piece.name.startswith("uci"):
        assert given["data"] == ["yacht" if small else piece.name.rpartition("-")[2]]
        assert given["protocol"] == ("quick" if small else "gal2018")
    if "paper" in piece.name:
        assert given["preset"] == ("default" if small and piece.name == "co2-paper" else "paper")
    if "out" in given:
        assert str(given["out"]).startswith(str(tmp_path / piece.name))


@pytest.mark.parametrize("small", [False, True])
def test_the_commands_of_the_zoo_are_read_by_what_they_start(
    small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all experiments, and of the first and last entry: the others have the same options."""
    every = whole_zoo.pieces()
    assert {piece.name for piece in every} >= {name.replace("/", "-") for name in ENTRIES}
    assert len({piece.name for piece in every}) == len(every)
    entries = [piece for piece in every if piece.words[2] in ENTRIES]
    for piece in [entries[0], entries[-1], *(piece for piece in every if piece not in entries)]:
        words = [word.format(device="cpu", folder=tmp_path / piece.name) for word in piece.command(small=small)]
        with monkeypatch.context() as patch:
            given = taken(words, patch)
        assert str(given["out"]) == str(tmp_path / piece.name)
        if piece.words[2] == "uci" and piece.name.startswith("uci-") and not small:
            protocol, _, name = piece.name.removeprefix("uci-").rpartition("-")
            assert (given["protocol"], given["data"]) == (protocol, [name])
    assert whole_zoo.main(["--list"]) == 0


def test_the_list() -> None:
    names = [p.name for p in pieces()]
    assert len(set(names)) == len(names)
    assert names[0] == "tests"
    assert names[-1] == "kingma-fig1b-paper"
    assert [n for n in names if n.startswith("uci")] == [f"uci-gal2018-{name}" for name in LARGE_SETS]


@pytest.mark.slow
def test_small_pieces_run_on_a_cpu(tmp_path: Path, data_folder: Path) -> None:
    """The commands themselves, some minutes."""
    assert main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == 0
    assert {content(tmp_path, each.name)["state"] for each in pieces()} == {"done"}
