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

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from pyrodrop.failed import Failed
from pyrodrop.options import Parser, Value, Word

SUMMARIES = {
    "run": "Run an experiment, or train an entry of the zoo.",
    "list": "List what can be run, and the entries of the zoo.",
    "show": "The card of an entry: what it is, its published results and our reference.",
    "check": "Train entries briefly and compare with their references; status 1 if one is missed.",
    "compare": "One table of the models of several runs, by held-out log density.",
    "report": "One page with a run's tables and pictures.",
    "completion": "Print a script that completes commands, names and options in bash, zsh or tcsh.",
}
_WORDS = {"run": "NAME [options]", "show": "ENTRY", "check": "ENTRY ...", "compare": "RUN_DIR ...", "report": "RUN_DIR"}
_WORDS["completion"] = "SHELL"
_MORE = """pyrodrop COMMAND --help and pyrodrop run NAME --help show the options. --version shows the version, --debug the \
traceback of an error.
Tables are as wide as the terminal, or as COLUMNS says; with NO_COLOR, and where the output is not a terminal, they are \
plain text."""
_INSTALL = "pyrodrop completion bash > ~/.local/share/bash-completion/completions/pyrodrop"
SHELLS = Literal["bash", "zsh", "tcsh"]
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
    if argv is None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # for a terminal that has no sign for what is printed
    with _noticed() as interrupts:
        try:
            status = _command(words)
            sys.stdout.flush()  # a full disk or a closed pipe is found here and not at the interpreter's end
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            status, line = _ended(
                error if isinstance(error, KeyboardInterrupt) or not interrupts else KeyboardInterrupt()
            )
            if line:
                print(f"pyrodrop: {_printable(line)}", file=sys.stderr)
    return status


@contextlib.contextmanager
def _noticed() -> Iterator[list[int]]:
    """The interrupts that come: where one cuts off an import, any error may follow (NumPy then calls itself for ever)."""
    came: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield came
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _ended(error: BaseException) -> tuple[int, str]:
    """The exit status of an error and its line."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, ": ".join(filter(None, ("interrupted", str(error))))
    if isinstance(error, BrokenPipeError):
        _nowhere()
        return NO_READER, ""
    if isinstance(error, OSError):
        return FAILED, _system(error)
    if isinstance(error, Failed | FloatingPointError):
        return FAILED, str(error)
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

    if not words or words[0] in ("-h", "--help", "help"):
        _usage()
        return 0 if words else WRONG
    if words[0].startswith("-"):
        Parser("pyrodrop").parse(words)
    command, *rest = words
    return COMMANDS[known(command, COMMANDS, "command")](rest)


def _usage() -> None:
    from pyrodrop.analysis.reports.terminal import pairs, paragraph

    print("usage: pyrodrop COMMAND ...\n")
    pairs({f"{name} {_WORDS.get(name, '')}": summary for name, summary in SUMMARIES.items()})
    print()
    paragraph(_MORE)
    print("Completion in bash, from the next shell on:")
    paragraph(_INSTALL, first="  ", then="    ")


def _run(words: list[str]) -> int:
    """Run a job by its name, or train an entry of the zoo; names of entries contain a slash."""
    if not words or words[0].startswith("-"):
        _parser("run").parse(words)
        raise ValueError("run needs the name of a job or of a zoo entry: pyrodrop run NAME; pyrodrop list has them all")
    name, *options = words
    function, fixed, summary = _runs(name)
    parser = Parser(f"pyrodrop run {name}", description=f"{summary[:1].upper()}{summary[1:]}.")
    parser.add_function(function, leave_out=fixed)
    function(**fixed, **parser.parse(options))
    return 0


def _runs(name: str) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """What runs under this name: a function, its first arguments, and what it is about."""
    from pyrodrop.analysis.experiments import JOBS, job
    from pyrodrop.names import known
    from pyrodrop.zoo import ENTRIES

    if known(name, [*JOBS, *ENTRIES], "job or zoo entry", "pyrodrop list") in JOBS:
        return job(name).function, {}, JOBS[name].summary
    from pyrodrop.analysis.zoo.train import run_entry

    return run_entry, {"entry": ENTRIES[name]}, ENTRIES[name].summary


def _list(words: list[str]) -> int:
    from pyrodrop.analysis.experiments import JOBS
    from pyrodrop.analysis.reports.terminal import pairs, paragraph
    from pyrodrop.zoo import ENTRIES

    _parser("list").parse(words)
    print("jobs (pyrodrop run JOB)")
    pairs({name: entry.summary for name, entry in JOBS.items()})
    print()
    paragraph("zoo entries (pyrodrop show, run, check ENTRY; pyrodrop.zoo.entry(ENTRY))")
    pairs({name: entry.summary for name, entry in ENTRIES.items()})
    return 0


def _show(words: list[str]) -> int:
    from pyrodrop.analysis.zoo.card import show
    from pyrodrop.zoo import entry

    show(entry(_parser("show").parse(words)["entry"]))
    return 0


def _check(words: list[str]) -> int:
    from pyrodrop.analysis.zoo.check import check_each
    from pyrodrop.zoo import entry

    chosen = _parser("check").parse(words)
    entries = [entry(name) for name in chosen["entries"]]
    return 0 if check_each(entries, jobs=chosen["jobs"], quiet=chosen["quiet"]) else FAILED


def _compare(words: list[str]) -> int:
    from pyrodrop.analysis.reports.runs import compare_by_data, read_run
    from pyrodrop.analysis.reports.terminal import print_table

    folders = _parser("compare").parse(words)["folders"]
    for number, table in enumerate(compare_by_data([read_run(folder) for folder in folders])):
        if number:
            print()
        print_table(table)
    return 0


def _report(words: list[str]) -> int:
    from pyrodrop.analysis.reports.page import write_page
    from pyrodrop.analysis.reports.runs import read_run

    chosen = _parser("report").parse(words)
    page = chosen["output"] or f"{chosen['folder']}/report.html"
    print(f"report: {write_page(read_run(chosen['folder']), page)}")
    return 0


def _completion(words: list[str]) -> int:
    try:
        import shtab
    except ImportError:
        raise Failed("completion needs shtab: pip install shtab") from None
    shell = _parser("completion").parse(words)["shell"]
    print(shtab.complete(_every_parser(shtab.FILE), shell))
    return 0


def _every_parser(files: Any) -> Parser:
    """One parser with all commands, jobs and entries and their options; `files` says how paths are completed."""
    from pyrodrop.analysis.experiments import JOBS
    from pyrodrop.zoo import ENTRIES

    whole = Parser("pyrodrop")
    commands = whole.add_subparsers()
    for name, summary in SUMMARIES.items():
        parser = commands.add_parser(name, help=summary)
        _parser(name, parser)
        names = parser.add_subparsers() if name == "run" else None
        for each in [*JOBS, *ENTRIES] if names else ():
            function, fixed, summary = _runs(each)
            own = names.add_parser(each, help=summary)  # type: ignore[union-attr]
            own.add_function(function, leave_out=fixed)
            _complete(own, ENTRIES, files)
        _complete(parser, ENTRIES, files)
    return whole


def _complete(parser: Parser, entries: Iterable[str], files: Any) -> None:
    """Say what the values of a parser's arguments are, beyond their choices."""
    for action in parser._actions:
        if action.metavar == "ENTRY":
            action.choices = list(entries)
        elif action.metavar in ("PATH", "RUN_DIR"):
            action.complete = files  # type: ignore[attr-defined]


def _parser(command: str, parser: Parser | None = None) -> Parser:
    """The parser of a command other than ``run NAME``."""
    parser = parser or Parser(f"pyrodrop {command}", description=SUMMARIES[command])
    if command == "run":
        parser.usage = "pyrodrop run NAME [options]"
        parser.epilog = "pyrodrop list has the names, and pyrodrop run NAME --help the options of each."
    if command == "completion":
        parser.epilog = f"for bash:\n{_INSTALL}"
    if command == "show":
        parser.add_argument(
            "entry", metavar="ENTRY", type=Value(str), help="the name of a zoo entry, see pyrodrop list"
        )
    if command == "check":
        parser.add_argument(
            "entries", metavar="ENTRY", nargs="+", type=Value(str), help="names of zoo entries, see pyrodrop list"
        )
        words = "number of processes, one thread each; this one if left out"
        parser.add_argument("--jobs", metavar="NUMBER", type=Value(int, "a whole number"), help=words)
        parser.add_argument("--quiet", action="store_true", help="show no progress, only the result")
    if command == "compare":
        parser.add_argument(
            "folders",
            metavar="RUN_DIR",
            nargs="+",
            type=Value(str),
            help="the folders of runs, with their results.json",
        )
    if command == "report":
        parser.add_argument(
            "folder", metavar="RUN_DIR", type=Value(str), help="the folder of a run, with its results.json"
        )
        words = "the page to write; report.html in the run's folder if left out"
        parser.add_argument("-o", "--output", metavar="PATH", type=Value(str), help=words)
    if command == "completion":
        parser.add_argument("shell", choices=get_args(SHELLS), type=Word(SHELLS), help="the shell: bash, zsh or tcsh")
    return parser


COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "run": _run,
    "list": _list,
    "show": _show,
    "check": _check,
    "compare": _compare,
    "report": _report,
    "completion": _completion,
}
