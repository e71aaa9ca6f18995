"""The command line: ``pyrodrop run JOB [options]``, ``list``, ``compare RUN_DIR...`` and ``report RUN_DIR -o FILE``."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import jsonargparse

USAGE = """usage: pyrodrop run JOB [options]   run an experiment (pyrodrop run JOB --help: its options)
       pyrodrop list                list what can be run, and the zoo's entries
       pyrodrop compare RUN_DIR...  one table of the models of several runs, by held-out log density
       pyrodrop report RUN_DIR [-o report.html]   one page with a run's tables and pictures"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status. What a user got wrong is said in one line and ends with status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    try:
        return _command(words)
    except (ValueError, FileNotFoundError) as error:
        print(f"pyrodrop: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pyrodrop: interrupted", file=sys.stderr)
        return 130


def _command(words: list[str]) -> int:
    from pyrodrop.analysis.experiments import JOBS, job
    from pyrodrop.names import known
    from pyrodrop.zoo import ENTRIES

    command, *rest = words
    known(command, ("run", "list", "compare", "report"), "command")
    if command == "compare":
        return _compare(rest)
    if command == "report":
        return _report(rest)
    if command == "list":
        if rest:
            raise ValueError(f"pyrodrop list takes no arguments; got {' '.join(rest)}")
        print("jobs (pyrodrop run JOB)")
        _columns({name: entry.summary for name, entry in JOBS.items()})
        print("\nzoo entries (pyrodrop.zoo.entry(NAME))")
        _columns({name: entry.summary for name, entry in ENTRIES.items()})
        return 0
    if not rest or rest[0].startswith("-"):
        if rest and rest[0] in ("-h", "--help"):
            print(USAGE)
            return 0
        raise ValueError(f"run needs the name of a job: {', '.join(JOBS)}")
    name, *options = rest
    function = job(name).function
    parser = jsonargparse.ArgumentParser(prog=f"pyrodrop run {name}", description=JOBS[name].summary)
    parser.add_function_arguments(function, skip={"quiet"}, fail_untyped=True)
    parser.add_argument("--quiet", action="store_true", help="show no progress, only the result")
    function(**parser.parse_args(_gathered(options, function)).as_dict())
    return 0


def _compare(folders: list[str]) -> int:
    from pyrodrop.analysis.experiments.report import console
    from pyrodrop.analysis.runs import compare_runs, read_run

    console().print(compare_runs([read_run(folder) for folder in folders]))
    return 0


def _report(words: list[str]) -> int:
    from pyrodrop.analysis.page import write_page
    from pyrodrop.analysis.runs import read_run

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
    """``--data yacht boston`` as the parser takes a list, ``--data=["yacht", "boston"]``."""
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
