"""The driver of what waits for a GPU, on a CPU with tiny pieces: skip, resume, time limit, failures, records."""

from __future__ import annotations

import functools
import json
import os
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
from safetensors.torch import save_file

from pyrodrop import cli
from pyrodrop.analysis import experiments
from pyrodrop.analysis.benchmarks import graphs_and_precisions, predict, replicates, steps
from pyrodrop.analysis.gpu import driver, record
from pyrodrop.analysis.gpu.__main__ import main
from pyrodrop.analysis.gpu.attempt import attempt
from pyrodrop.analysis.gpu.driver import drive
from pyrodrop.analysis.gpu.pieces import LARGE_SETS, Piece, pieces
from pyrodrop.analysis.gpu.record import Place

ROOT = Path(__file__).parents[2]
# A training of 40 parts: `python -m timeit` is a module of Python that runs code.
PARTS = """
import json, pathlib, time
folder = pathlib.Path("{folder}")
for part in range(40):
    file = folder / f"part-{{part}}.json"
    if not file.exists():
        time.sleep(0.05)
        file.write_text("1")
(folder / "result.json").write_text(json.dumps(dict(parts=40, device="{device}")))
"""


def piece(name: str, code: str, **settings: Any) -> Piece:
    return Piece(name, ("timeit", "-n1", "-r1", code), **settings)


def answers(number: int = 1) -> Piece:
    return piece("answers", f"open('{{folder}}/result.json', 'w').write('{{{{\"answer\": {number}}}}}')")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(driver, "LEAST", 0.1)
    return Place(tmp_path / "out", "cpu", small=False)


def content(place: Place, name: str) -> dict[str, Any]:
    return json.loads((place.out / f"{name}.json").read_text())  # type: ignore[no-any-return]


def test_what_is_done_is_skipped_and_what_fails_is_left_behind(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        piece("fails", "print('so far'); raise SystemExit('no memory')"),
        piece("silent", "pass"),
        piece("broken", "open('{folder}/result.json', 'w').write('half')"),
        Piece("absent", (), missing="the zoo has no entries for it yet"),
        answers(),
    ]
    assert drive(chosen, place) == 1
    assert [content(place, p.name)["state"] for p in chosen] == ["failed", "failed", "failed", "missing", "done"]
    assert content(place, "fails")["why"] == "status 1: SystemExit: no memory"
    assert content(place, "fails")["last lines"][0] == "so far"
    assert content(place, "silent")["why"].startswith("it wrote no result.json")
    assert "result.json" in content(place, "broken")["why"]
    assert content(place, "absent")["why"] == "the zoo has no entries for it yet"
    done = content(place, "answers")
    assert done["results"] == {"result.json": {"answer": 1}}
    assert (done["attempts"], done["identity"]["device"]) == (1, "cpu")
    assert {"python", "pyrodrop", "torch"} <= done["identity"]["versions"].keys()

    (place.out / "answers" / "result.json").unlink()  # would be made anew
    capsys.readouterr()
    assert drive(chosen[3:], place) == 0
    assert "answers: done before" in capsys.readouterr().out
    assert content(place, "answers") == done
    assert drive(chosen[:1], place) == 1
    assert content(place, "fails")["attempts"] == 2


def test_a_piece_that_was_broken_off_goes_on_and_says_how_far_it_is(place: Place) -> None:
    parts = piece("parts", PARTS)
    assert drive([parts], place, limit=1.2, budget=1.2) == 1
    first = content(place, "parts")
    assert first["state"] == "broken off"
    made = len(first["progress"]["files"])
    assert 0 < made < 40
    assert drive([parts], place, limit=1.2) == 0  # in as many attempts as it takes
    last = content(place, "parts")
    assert last["state"] == "done"
    assert last["attempts"] >= 2
    assert last["seconds"] > first["seconds"]
    assert last["results"] == {"result.json": {"parts": 40, "device": "cpu"}}


def test_a_piece_that_gets_nowhere_is_attempted_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert drive([piece("sleeps", "import time; time.sleep(60)"), answers()], place, limit=1) == 1
    assert content(place, "sleeps")["attempts"] == 1
    assert content(place, "answers")["state"] == "done"
    assert "sleeps: it has written nothing" in capsys.readouterr().out


def test_results_of_another_version_are_put_aside(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drive([answers()], place) == 0
    monkeypatch.setattr(record, "versions", lambda: {"torch": "9"})
    for number in (1, 2):
        assert drive([answers(number)], place) == 0
        assert content(place, f"answers.{number}")["results"]["result.json"]["answer"] == max(1, number - 1)
        assert (place.out / f"answers.{number}" / "result.json").exists()
    assert content(place, "answers")["results"]["result.json"]["answer"] == 2


def test_all_that_a_piece_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also a process that ignores the request."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    start = f"p = subprocess.Popen([sys.executable, '-c', {child!r}])"
    code = f"import subprocess, sys; {start}; print(p.pid, flush=True); p.wait()"
    got = attempt(["timeit", "-n1", "-r1", code], tmp_path / "log", 1.5)
    assert got.status is None
    assert got.seconds < 30
    for _ in range(50):
        if not Path(f"/proc/{got.tail[0]}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{got.tail[0]}").exists() or "Z" in Path(f"/proc/{got.tail[0]}/stat").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_piece_and_leaves_a_record(place: Place, number: int) -> None:
    code = f"import os; os.kill(os.getppid(), {int(number)}); import time; time.sleep(60)"
    start = time.perf_counter()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            drive([piece("interrupts", code)], place)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - start < 30
    assert content(place, "interrupts")["state"] == "broken off"
    assert content(place, "interrupts")["seconds"] > 0


def test_one_process_at_a_time(place: Place, tmp_path: Path) -> None:
    from filelock import FileLock

    place.out.mkdir()
    with FileLock(place.out / ".lock"), pytest.raises(ValueError, match="another process runs pieces in"):
        drive([answers()], place)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="results need a folder that can be written to"):
        drive([answers()], Place(tmp_path / "file", "cpu", small=False))
    (place.out / "answers.json").write_text("{")
    with pytest.raises(ValueError, match="answers.json"):
        drive([answers()], place)


def test_progress_has_the_steps_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    save_file({"history": torch.zeros(7, 3)}, tmp_path / "checkpoints" / "a.safetensors")
    save_file({"other": torch.zeros(7, 3)}, tmp_path / "b.safetensors")
    (tmp_path / "c.safetensors").write_bytes(b"half")
    (tmp_path / "log.txt").write_text("not counted")
    found = record.progress(tmp_path)
    assert found["steps"] == {"checkpoints/a.safetensors": 7}
    assert list(found["files"]) == ["b.safetensors", "c.safetensors", "checkpoints/a.safetensors"]


@pytest.mark.more
def test_results_of_tests_are_counted(tmp_path: Path) -> None:
    """As pytest writes them."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_one(): pass\ndef test_two(): assert False\n@pytest.mark.skip\ndef test_three(): pass\n"
    )
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml", "test_some.py"]
    subprocess.run(run, cwd=tmp_path, capture_output=True, check=False)
    found = record.junit(tmp_path / "junit.xml")
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
        (["--budget", "3"], "--budget is a number of seconds and must be at least 20; got 3"),
        (["--limit", "nan"], "--limit is a number of seconds and must be at least 1; got nan"),
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
            given.update(kwargs)

        return called

    module, *options = command
    if module == "pyrodrop":
        job = experiments.JOBS[options[1]].named(options[1])
        function = instead(job.function)
        monkeypatch.setattr(type(job), "function", property(lambda _: function))
        assert cli.main(options) == 0
        return given
    import jsonargparse

    own = {m.__name__: m for m in (graphs_and_precisions, predict, replicates, steps)}[module]
    if own is predict:
        monkeypatch.setattr(predict, "compare", lambda case, rounds, device: given.update(rounds=rounds, device=device))
        monkeypatch.setattr(predict, "compare_masks", lambda *_: None)
        predict.main([*options[:2]])
    elif own is steps:
        monkeypatch.setattr(steps, "main", instead(steps.main))
        steps.command(options)
    else:
        jsonargparse.auto_cli(instead(own.main), args=options)  # type: ignore[attr-defined]
    return given


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("piece", [p for p in pieces() if p.words and p.name != "tests"], ids=lambda p: p.name)
def test_commands_are_read_by_what_they_start(
    piece: Piece, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, "cpu", small)
    given = taken(place.words(piece), monkeypatch)
    assert str(given["device"]) == "cpu"
    if piece.name.startswith("replicates-"):
        assert given["count"] == (8 if small else int(piece.name.partition("-")[2]))
    if piece.name.startswith("uci"):
        assert given["data"] == ["yacht" if small else piece.name.rpartition("-")[2]]
        assert given["protocol"] == ("quick" if small else "gal2018")
    if piece.name.startswith("kingma-fig1b"):
        assert given["images"] == ("jpeg-subset" if small else "binary")
    if "paper" in piece.name:
        assert given["preset"] == ("default" if small and piece.name == "co2-paper" else "paper")
    if "out" in given:
        assert str(given["out"]).startswith(str(tmp_path / piece.name))


def test_the_list() -> None:
    names = [p.name for p in pieces()]
    assert len(set(names)) == len(names)
    assert names[0] == "tests"
    assert names[-1] == "kingma-fig1b-paper"
    assert [n for n in names if n.startswith("uci")] == [f"uci-gal2018-{name}" for name in LARGE_SETS]
    (tests,) = [p for p in pieces(root=Path("/nowhere")) if p.name == "tests"]
    assert "no tests" in tests.missing


@pytest.mark.slow
def test_small_pieces_run_on_a_cpu(tmp_path: Path, data_folder: Path) -> None:
    """The commands themselves, some minutes."""
    assert main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == 0
    for each in pieces():
        record = json.loads((tmp_path / f"{each.name}.json").read_text())
        assert record["state"] == ("missing" if each.missing else "done")
    assert os.listdir(tmp_path)
