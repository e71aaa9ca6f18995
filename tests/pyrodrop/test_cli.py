"""The command line: options of functions, help pages, and mistakes; faulty calls of jobs are in `tests/analysis`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest

from pyrodrop import __version__, cli, zoo
from pyrodrop.analysis import jobs
from pyrodrop.analysis.jobs import JOBS

COMMANDS = ["run", "list", "show", "cite"]
RUNS = [f"run {name}" for name in (*JOBS, "uci/yacht")]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the job ``run example`` was called with."""
    values: dict[str, Any] = {}

    def example(
        *,
        steps: int | None = None,
        rate: float = 0.5,
        sets: list[str] | None = None,
        widths: list[int] | None = None,
        preset: Literal["default", "paper"] = "default",
        num_draws: int = 3,
        out: Path = Path("runs/x"),
        quiet: bool = False,
    ) -> None:
        values.update(locals())

    monkeypatch.setattr(cli, "_job", lambda name: (example, "an example"))
    return values


def test_without_the_laboratory_entries_are_run_and_experiments_need_a_clone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As from a wheel."""
    monkeypatch.setattr(jobs, "find_spec", lambda name: None)
    assert cli.main(["run", "uci/yacht", "--help"]) == 0
    assert cli.main(["list"]) == 0
    assert cli.main(["run", "co2"]) == cli.FAILED
    assert "pyrodrop: the experiment 'co2' needs a clone of pyrodrop's repository" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("", "steps", None),
        ("--sets yacht boston --quiet", "sets", ["yacht", "boston"]),
        ("--rate -1e-3", "rate", -1e-3),
        ("--widths 10 20", "widths", [10, 20]),
        ("--num-draws 7", "num_draws", 7),
        ("--quiet", "quiet", True),
    ],
)
def test_values(options: str, name: str, value: Any, called: dict[str, Any]) -> None:
    assert cli.main(["run", "example", *options.split()]) == 0
    assert called[name] == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--sets", "--sets requires at least 1 element"),
        ("--steps 1e3", 'Invalid value for --steps: unable to convert "1e3" into int'),
        ("--preset papr", 'Choose from: "default", "paper". Did you mean "paper"?'),
        ("--steps 1 --steps 2", "--steps specified multiple times"),
    ],
)
def test_mistakes(options: str, message: str, called: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "example", *options.split()]) == cli.WRONG
    assert message in capsys.readouterr().err
    assert not called


def test_commands_and_names_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    for command, message in (
        ("rnu", 'Unknown command "rnu". Did you mean "run"? Available commands: run, list, show, '),
        ("run", 'Command "run" parameter NAME requires an argument. See pyrodrop run --help.'),
        ("run co3", "see pyrodrop list; did you mean 'co2'?"),
        ("run -- co3", "no job or zoo entry is called 'co3'"),
    ):
        assert cli.main(command.split()) == cli.WRONG
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *COMMANDS, *RUNS])
def test_help(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option says what it is, in words and not as Python prints it."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: pyrodrop")
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<class|typing|Optional|Union|Literal|None", text)
    options = re.findall(r"^│ (?:\*  )?((?:--|[A-Z]).*?)  +(.*)", text, re.MULTILINE)
    assert len(options) > 4 or not command.startswith("run ")
    assert all(re.match(r"[^\[]*\w", description) for _, description in options), options


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--version"], ["run", "co2", "--version"]):
        assert cli.main(args) == 0
        assert capsys.readouterr().out == f"pyrodrop {__version__}\n"
    assert cli.main([]) == cli.WRONG
    assert "Usage: pyrodrop COMMAND" in capsys.readouterr().out


def test_list_names_every_job_and_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*JOBS, *zoo.ENTRIES])
