"""The command line: ``pyrodrop run``, ``list``, ``show``, ``check``, ``compare`` and ``report``.

Whatever goes wrong is one line on stderr, which begins with ``pyrodrop:``; ``--debug`` anywhere shows its traceback too.
Exit statuses:

    0     done
    1     the call failed: a file or folder, the network, memory, a training that diverged; or a check missed its reference
    2     the call is wrong: an unknown command, option or name, or a value that is not allowed
    70    a defect of pyrodrop: an error that nobody foresaw
    130   interrupted
    141   whoever read the output went away
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import jsonargparse

from pyrodrop.json_files import Failed

USAGE = """usage: pyrodrop run NAME [options]  run an experiment or train an entry of the zoo (--help: its options)
       pyrodrop list                list what can be run, and the zoo's entries
       pyrodrop show ENTRY          the model card of an entry: what it is, published figures, our reference
       pyrodrop check ENTRY...      train entries briefly and compare with their references; status 1 on a miss (--jobs N)
       pyrodrop compare RUN_DIR...  one table of the models of several runs, by held-out log density
       pyrodrop report RUN_DIR [-o report.html]   one page with a run's tables and pictures
       --debug with any of them shows the traceback of an error"""

FAILED, WRONG, DEFECT, INTERRUPTED, NO_READER = 1, 2, 70, 130, 141

_SYSTEM = {
    errno.ENOSPC: "the disk is full: make room and run the same command again",
    errno.EDQUOT: "your share of the disk is used up: make room and run the same command again",
    errno.EFBIG: "the file grew larger than is allowed (ulimit -f)",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
    errno.EACCES: "no permission: choose another place, or change its permissions",
    errno.EPERM: "no permission: choose another place, or change its permissions",
    errno.EROFS: "it cannot be written to: choose another place",
    errno.EISDIR: "this is a folder, and a file is needed: choose another name",
    errno.ENOTDIR: "this is within something that is not a folder: choose another name",
    errno.EEXIST: "this exists already and is something else: choose another name",
    errno.ENOENT: "this does not exist or cannot be made: check the name",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status, see the module's docstring. ``--help`` raises SystemExit(0)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else WRONG
    try:
        status = _command(words)
        sys.stdout.flush()  # a full disk or a closed pipe is found here and not at the interpreter's end
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        status, line = _ended(error)
        if line:
            print(f"pyrodrop: {_printable(line)}", file=sys.stderr)
        return status
    return status


def _ended(error: BaseException) -> tuple[int, str]:
    """The exit status of an error and its line."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, BrokenPipeError):
        _nowhere()
        return NO_READER, ""
    if isinstance(error, OSError):
        return FAILED, _system(error)
    if isinstance(error, Failed | FloatingPointError):
        return FAILED, str(error)
    if isinstance(error, argparse.ArgumentError):
        return WRONG, _argument(str(error))
    if isinstance(error, ValueError):
        return WRONG, str(error)
    kind = type(error).__name__
    if _out_of_memory(error):
        return FAILED, f"out of memory: {str(error) or kind}; use fewer draws, or a smaller batch or network"
    if kind == "SafetensorError":
        return FAILED, f"a safetensors file could not be read or written: {error}"
    if kind == "TerminatedWorkerError":
        return FAILED, "a worker process was killed, perhaps for lack of memory; run the same command again to go on"
    return DEFECT, (
        f"this is a defect of pyrodrop, please report it: {kind}: {error}; "
        "the same command with --debug shows the traceback"
    )


def _argument(text: str) -> str:
    """What the parser says of an option's value, without its own terms."""
    text = re.sub(r'^Parser key "(.*?)":', r"--\1:", " ".join(text.split()))
    text = re.sub(
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*)\] Errors:.*Given value type",
        r"Expected one of \1. Given value type",
        text,
    )
    text = re.sub(r"an? typing\.Literal\[(.*?)\]", r"one of \1", text)
    return re.sub(r"<class '(\w+)'>", r"\1", text).replace("NoneType", "None")


def _system(error: OSError) -> str:
    """An error of the operating system or of the network in words, with the file."""
    words = _SYSTEM.get(error.errno or 0)
    if words is None or error.filename is None:
        return " ".join(filter(None, (str(error) or type(error).__name__, f"({words})" if words else "")))
    return f"{error.filename2 or error.filename}: {words}"


def _out_of_memory(error: BaseException) -> bool:
    """Also for torch, whose error on a CPU is a RuntimeError."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in text or "out of memory" in text))
    )


def _printable(line: str) -> str:
    """One line that a terminal shows as it is: content of files may be part of it."""
    flat = " ".join(line.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in flat)


def _nowhere() -> None:
    """Let the rest of the output go nowhere, so that the interpreter does not fail at its end to flush it."""
    with contextlib.suppress(OSError, ValueError):  # stdout may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    parser = _parser(f"run {name}", summary)
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
    from pyrodrop.analysis.zoo.check import check_each
    from pyrodrop.zoo import entry

    parser = _parser("check", "Train entries of the zoo briefly and compare with their references.")
    parser.add_argument("names", nargs="*", help="of the entries")
    parser.add_argument("--jobs", type=int, help="number of processes, one thread each; this one if not given")
    parser.add_argument("--quiet", action="store_true", help="show no progress, only the result")
    unknown = any(word.startswith("-") and word.partition("=")[0] not in ("--jobs", "--quiet") for word in words)
    chosen = None if unknown else parser.parse_args(words)
    if chosen is None or not chosen.names:
        raise ValueError(f"check needs names of zoo entries, see pyrodrop list; got {' '.join(words) or 'none'}")
    entries = [entry(name) for name in chosen.names]
    return 0 if check_each(entries, jobs=chosen.jobs, quiet=chosen.quiet) else FAILED


def _compare(folders: list[str]) -> int:
    from pyrodrop.analysis.reports.runs import compare_runs, read_run
    from pyrodrop.analysis.reports.terminal import print_table

    if not folders or any(folder.startswith("-") for folder in folders):
        got = " ".join(folders) or "none"
        raise ValueError(f"compare needs the folders of runs: pyrodrop compare RUN_DIR...; got {got}")
    print_table(compare_runs([read_run(folder) for folder in folders]))
    return 0


def _report(words: list[str]) -> int:
    from pyrodrop.analysis.reports.page import write_page
    from pyrodrop.analysis.reports.runs import read_run

    parser = _parser("report", "One page with a run's tables and pictures.")
    parser.add_argument("folder", type=str, help="a run's folder, with its results.json")
    parser.add_argument(
        "-o", "--output", type=str, help="the page to write; report.html in the run's folder if not given"
    )
    chosen = parser.parse_args(words)
    print(f"report: {write_page(read_run(chosen.folder), chosen.output or f'{chosen.folder}/report.html')}")
    return 0


def _parser(name: str, summary: str) -> jsonargparse.ArgumentParser:
    """A parser that raises an ArgumentError, so that its errors are one line like all others."""
    return jsonargparse.ArgumentParser(prog=f"pyrodrop {name}", description=summary, exit_on_error=False)


def _gathered(options: list[str], function: Callable[..., Any]) -> list[str]:
    """Rewrite ``--data yacht boston`` as ``--data=["yacht", "boston"]``, the form in which the parser reads lists.

    Raises:
        ValueError: a list has no values, or a value is empty.
    """
    lists = {f"--{name}" for name, kind in get_type_hints(function).items() if "list[" in str(kind)}
    words: list[str] = []
    left = list(options)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option in lists:
            values = [] if equals else list(itertools.takewhile(lambda value: not value.startswith("--"), left))
            del left[: len(values)]
            if not values and value.replace(" ", "") in ("", "[]", "null"):
                raise ValueError(f"{option} needs at least one value; got none")
            word = f"{option}={value if equals else json.dumps(values)}"
        elif word == "" or (equals and not value):
            raise ValueError(
                f"an option needs a value; got none for {option or (words[-1] if words else 'the first one')}"
            )
        words.append(word)
    return words


def _columns(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"  {name:<{width}}  {text}")
