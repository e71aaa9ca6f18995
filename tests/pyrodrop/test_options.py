"""The command line's options: words as they are typed, errors in words, help, and completion."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest

from pyrodrop import __version__, cli
from pyrodrop.analysis.experiments import JOBS, job
from pyrodrop.analysis.zoo.train import run_entry
from pyrodrop.options import Parser

ENTRY = "uci/yacht"


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
    """Nothing.

    Args:
        steps: number of steps, 100 % of them.
        rate: of dropout.
        sets: of data.
        widths: of layers.
        preset: of settings.
        num_draws: number of draws.
        out: folder.
        quiet: say nothing.
    """


def parser() -> Parser:
    made = Parser("pyrodrop run example")
    made.add_function(example)
    return made


def test_without_words_there_are_the_defaults() -> None:
    usual = {name: p.default for name, p in inspect.signature(example).parameters.items()}
    assert parser().parse([]) == usual


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--steps 20", "steps", 20),
        ("--steps=-3", "steps", -3),
        ("--steps -3", "steps", -3),
        ("--rate 1e-3", "rate", 1e-3),
        ("--sets yacht boston --rate 1", "sets", ["yacht", "boston"]),
        ("--sets=yacht", "sets", ["yacht"]),
        ("--widths 10 20", "widths", [10, 20]),
        ("--preset paper", "preset", "paper"),
        ("--num-draws 7", "num_draws", 7),
        ("--num_draws 7", "num_draws", 7),
        ("--out here", "out", Path("here")),
        ("--quiet", "quiet", True),
    ],
)
def test_values(words: str, name: str, value: Any) -> None:
    found = parser().parse(words.split())
    assert found[name] == value
    assert type(found[name]) is type(value)
    assert found.keys() == inspect.signature(example).parameters.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "20"], "has no option --step; did you mean --steps? pyrodrop run example --help lists its options"),
        (["--ste=20"], "has no option --ste; did you mean --steps?"),
        (["--q"], "has no option --q; "),
        (["--zzz", "red"], "has no option --zzz; pyrodrop run example --help lists"),
        (["20"], "takes no more words; got '20'"),
        (["--steps"], "--steps needs a value; got none"),
        (["--steps", "--quiet"], "--steps needs a value; got none"),
        (["--steps", ""], "--steps needs a value; got none"),
        (["--out="], "--out needs a value; got none"),
        (["--preset", ""], "--preset needs a value; got none"),
        (["--sets"], "--sets needs at least one value; got none"),
        (["--sets", " "], "--sets needs a value; got none"),
        (["--steps", "1e3"], "--steps must be a whole number; got '1e3'"),
        (["--rate", "high"], "--rate must be a number; got 'high'"),
        (["--widths", "10", "ten"], "--widths must be a whole number; got 'ten'"),
        (["--num_draws", "x"], "--num-draws must be a whole number; got 'x'"),
        (["--preset", "papr"], "--preset must be 'default' or 'paper'; got 'papr'; did you mean 'paper'?"),
        (["--quiet=yes"], "--quiet takes no value; got 'yes'"),
        (["--steps", "1", "--steps", "1"], "--steps is given twice: leave one of them out"),
        (["--num_draws", "1", "--num-draws", "2"], "--num-draws is given twice"),
    ],
)
def test_what_is_wrong_is_said_in_words(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parser().parse(words)


def test_an_argument_without_words_or_option_is_a_mistake_of_ours() -> None:
    def silent(*, steps: int = 1) -> None:
        """Nothing."""

    def strange(*, steps: complex = 1j) -> None:
        """Nothing.

        Args:
            steps: none.
        """

    with pytest.raises(TypeError, match="argument steps of .*silent has no description"):
        parser().add_function(silent)
    with pytest.raises(TypeError, match="argument steps is a .*complex.*no option"):
        parser().add_function(strange)


COMMANDS = [*cli.COMMANDS, *(f"run {name}" for name in (*JOBS, ENTRY))]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_in_words(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every argument of a job with its default, and no type as Python prints it."""
    monkeypatch.setenv("COLUMNS", str(width))
    if command:
        with pytest.raises(SystemExit, match="0"):
            cli.main([*command.split(), "--help"])
    else:
        assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert not re.search(r"<class|typing|Optional|Union|Literal|None|null|type:", text)
    paths = ("  pyrodrop", "pyrodrop", "usage: ")  # what is copied is in one line
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith(paths) and (width == 80 or not re.search(r"[{\[]", line))
    ]
    assert max(map(len, lines)) <= width
    if command.startswith("run "):
        function = run_entry if "/" in command else job(command.split()[1]).function
        for name, parameter in inspect.signature(function).parameters.items():
            if name == "entry":
                continue
            assert f"--{name.replace('_', '-')}" in text
            if not isinstance(parameter.default, bool | list | tuple | None):
                assert f"(default: {parameter.default})" in " ".join(text.split())


@pytest.mark.parametrize("command", ["", *COMMANDS[:8]])
def test_every_command_says_its_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([*command.split(), "--version"])
    assert capsys.readouterr().out == f"pyrodrop {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_abbreviations(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"show": [ENTRY], "check": [ENTRY], "compare": ["a"], "report": ["a"], "completion": ["bash"]}
    words = [*command.split(), *more.get(command, [])]
    for word in ("--hel", "--versio"):
        assert cli.main([*words, word]) == 2
        assert f"has no option {word}; did you mean {'--help' if word == '--hel' else '--version'}?" in (
            capsys.readouterr().err
        )
    for word in ("--see", "--quie", "--ou"):
        assert cli.main([*words, word, "1"]) == 2
        assert f"has no option {word}" in capsys.readouterr().err


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    program = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_pyrodrop; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_completion_in_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs shtab")
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "pyrodrop"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "pyrodrop", "") >= set(cli.COMMANDS)
    assert completed(script, "pyrodrop", "run", "s") >= {"sbc", "sparse", "sparse/lenet-5-molchanov2017"}
    assert completed(script, "pyrodrop", "run", "co2", "--st") == {"--steps"}
    assert completed(script, "pyrodrop", "run", "sparse", "--net", "") == {"lenet-300-100", "lenet-5"}
    assert completed(script, "pyrodrop", "run", "uci/yacht", "--se") == {"--seed"}
    assert completed(script, "pyrodrop", "check", "uci/wine", "uci/y") == {"uci/yacht"}
    assert completed(script, "pyrodrop", "show", "uci/y") == {"uci/yacht"}


def test_completion_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert "pip install shtab" in capsys.readouterr().err
