"""The command line: ``pyrodrop run``, ``list``, ``show``, ``check``, ``compare`` and ``report``."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import jsonargparse

USAGE = """usage: pyrodrop run NAME [options]  run an experiment or train an entry of the zoo (--help: its options)
       pyrodrop list                list what can be run, and the zoo's entries
       pyrodrop show ENTRY          the model card of an entry: what it is, published figures, our reference
       pyrodrop check ENTRY...      train entries briefly and compare with their references; status 1 on a miss
       pyrodrop compare RUN_DIR...  one table of the models of several runs, by held-out log density
       pyrodrop report RUN_DIR [-o report.html]   one page with a run's tables and pictures"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    Errors of the user (ValueError, FileNotFoundError, ConnectionError) are printed as one line, with status 2; an
    interrupted run has status 130.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    try:
        return _command(words)
    except (ValueError, FileNotFoundError, ConnectionError) as error:
        print(f"pyrodrop: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pyrodrop: interrupted", file=sys.stderr)
        return 130


def _command(words: list[str]) -> int:
    from pyrodrop.names import known

    command, *rest = words
    commands = {
        "run": _run, "list": _list, "show": _show, "check": _check, "compare": _compare, "report": _report
    }  # fmt: skip
    return commands[known(command, commands, "command")](rest)


def _run(words: list[str]) -> int:
    """Run a job by its name, or train an entry of the zoo; names of entries contain a slash."""
    from pyrodrop.analysis.experiments import JOBS, job
    from pyrodrop.zoo import entry

    if not words or words[0].startswith("-"):
        if words and words[0] in ("-h", "--help"):
            print(USAGE)
            return 0
        raise ValueError(f"run needs the name of a job: {', '.join(JOBS)}; or of a zoo entry, see pyrodrop list")
    name, *options = words
    function: Callable[..., Any]
    fixed: dict[str, Any] = {}
    if "/" in name:
        from pyrodrop.analysis.zoo.train import run_entry

        chosen = entry(name)
        function, fixed, summary = run_entry, {"entry": chosen}, chosen.summary
    else:
        function, summary = job(name).function, JOBS[name].summary
    parser = jsonargparse.ArgumentParser(prog=f"pyrodrop run {name}", description=summary)
    parser.add_function_arguments(function, skip={"quiet", *fixed}, fail_untyped=True)
    parser.add_argument("--quiet", action="store_true", help="show no progress, only the result")
    function(**fixed, **parser.parse_args(_gathered(options, function)).as_dict())
    return 0


def _list(words: list[str]) -> int:
    from pyrodrop.analysis.experiments import JOBS
    from pyrodrop.zoo import ENTRIES

    if words:
        raise ValueError(f"pyrodrop list takes no arguments; got {' '.join(words)}")
    print("jobs (pyrodrop run JOB)")
    _columns({name: entry.summary for name, entry in JOBS.items()})
    print("\nzoo entries (pyrodrop show, run, check ENTRY; pyrodrop.zoo.entry(ENTRY))")
    _columns({name: entry.summary for name, entry in ENTRIES.items()})
    return 0


def _show(words: list[str]) -> int:
    from pyrodrop.analysis.zoo.card import show
    from pyrodrop.zoo import entry

    if len(words) != 1:
        raise ValueError(f"show needs the name of one zoo entry, see pyrodrop list; got {' '.join(words) or 'none'}")
    show(entry(words[0]))
    return 0


def _check(words: list[str]) -> int:
    from pyrodrop.analysis.zoo.check import check
    from pyrodrop.zoo import entry

    names = [word for word in words if word != "--quiet"]
    if not names or any(name.startswith("-") for name in names):
        raise ValueError(f"check needs names of zoo entries, see pyrodrop list; got {' '.join(words) or 'none'}")
    entries = [entry(name) for name in names]
    held = [check(each, quiet="--quiet" in words) for each in entries]
    return 0 if all(held) else 1


def _compare(folders: list[str]) -> int:
    from pyrodrop.analysis.reports.console import console
    from pyrodrop.analysis.reports.runs import compare_runs, read_run

    console().print(compare_runs([read_run(folder) for folder in folders]))
    return 0


def _report(words: list[str]) -> int:
    from pyrodrop.analysis.reports.page import write_page
    from pyrodrop.analysis.reports.runs import read_run

    parser = jsonargparse.ArgumentParser(
        prog="pyrodrop report", description="One page with a run's tables and pictures."
    )
    parser.add_argument("folder", type=str, help="a run's folder, with its results.json")
    parser.add_argument(
        "-o", "--output", type=str, help="the page to write; report.html in the run's folder if not given"
    )
    chosen = parser.parse_args(words)
    print(f"report: {write_page(read_run(chosen.folder), chosen.output or f'{chosen.folder}/report.html')}")
    return 0


def _gathered(options: list[str], function: Callable[..., Any]) -> list[str]:
    """Rewrite ``--data yacht boston`` as ``--data=["yacht", "boston"]``, the form in which the parser reads lists."""
    lists = {f"--{name}" for name, kind in get_type_hints(function).items() if "list[" in str(kind)}
    words: list[str] = []
    left = list(options)
    while left:
        word = left.pop(0)
        if word in lists:
            values = list(itertools.takewhile(lambda value: not value.startswith("--"), left))
            del left[: len(values)]
            word = f"{word}={json.dumps(values)}"
        words.append(word)
    return words


def _columns(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"  {name:<{width}}  {text}")
