"""The command line: ``pyrodrop run``, ``list``, ``show``, ``pull``, ``check``, ``compare`` and ``report``.

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
from pathlib import Path
from typing import Annotated, Any, Literal

from pyrodrop.failed import Failed
from pyrodrop.options import Parser

_MORE = """pyrodrop COMMAND --help and pyrodrop run NAME --help show the options. --version shows the version, --debug the \
traceback of an error.
Tables are as wide as the terminal, or as COLUMNS says; with NO_COLOR, and where the output is not a terminal, they are \
plain text."""
_Entry = Annotated[str, "ENTRY"]
_Folder = Annotated[str, "RUN_DIR"]
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
    function = COMMANDS[known(command, COMMANDS, "command")]
    if command == "run" and rest and not rest[0].startswith("-"):
        return _run(*rest)  # whose options are those of what it runs
    return function(**Parser.of(f"pyrodrop {command}", function).parse(rest))


def _usage() -> None:
    from pyrodrop.analysis.reports.terminal import pairs, paragraph

    print("usage: pyrodrop COMMAND ...\n")
    parsers = {name: Parser.of(name, function) for name, function in COMMANDS.items()}
    pairs({f"{name} {parser.words}": str(parser.description) for name, parser in parsers.items()})
    print()
    paragraph(_MORE)
    paragraph(str(parsers["completion"].epilog), then="  ")


def _run(name: Annotated[str, "NAME"], *words: str) -> int:
    """Run an experiment, or train an entry of the zoo.

    pyrodrop run NAME --help shows the options of each.

    Args:
        name: the name of a job or of a zoo entry: pyrodrop list has them all.
        words: its options.
    """
    function, fixed, summary = _runs(name)
    parser = Parser(f"pyrodrop run {name}", description=f"{summary[:1].upper()}{summary[1:]}.")
    parser.add_function(function, leave_out=fixed)
    function(**fixed, **parser.parse(words))
    return 0


def _runs(name: str) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """What runs under this name: a function, its first arguments, and what it is about."""
    from pyrodrop.analysis.experiments import JOBS, job
    from pyrodrop.names import known
    from pyrodrop.zoo import every

    entries = every()
    if known(name, [*JOBS, *entries], "job or zoo entry", "pyrodrop list") in JOBS:
        return job(name).function, {}, JOBS[name].summary
    from pyrodrop.analysis.zoo.train import run_entry

    return run_entry, {"entry": entries[name]}, entries[name].summary


def _list() -> int:
    """List what can be run, and the entries of the zoo."""
    from pyrodrop.analysis.experiments import JOBS
    from pyrodrop.analysis.reports.terminal import pairs, paragraph
    from pyrodrop.zoo import every

    print("jobs (pyrodrop run JOB)")
    pairs({name: entry.summary for name, entry in JOBS.items()})
    print()
    paragraph("zoo entries (pyrodrop show, run, check ENTRY; pyrodrop.zoo.entry(ENTRY))")
    pairs({name: entry.summary for name, entry in every().items()})
    return 0


def _show(entry: _Entry) -> int:
    """The card of an entry: what it is, its published results and our reference.

    Args:
        entry: the name of a zoo entry, see pyrodrop list.
    """
    from pyrodrop import zoo
    from pyrodrop.analysis.zoo.card import show

    show(zoo.entry(entry))
    return 0


def _pull(entries: list[_Entry]) -> int:
    """Where the trained posteriors of entries are; one that is not here is downloaded.

    Args:
        entries: names of zoo entries, see pyrodrop list.
    """
    from pyrodrop import zoo
    from pyrodrop.zoo import trained

    for name in entries:
        path = trained.pull(zoo.entry(name).name, progress=True)
        print(f"{name}: {path}, {path.stat().st_size / 1000:.0f} kB")
    return 0


def _check(entries: list[_Entry], *, jobs: int | None = None, quiet: bool = False) -> int:
    """Predict with trained posteriors, train briefly, compare with the references; status 1 if one is missed.

    Args:
        entries: names of zoo entries, see pyrodrop list.
        jobs: number of processes, one thread each; this one if left out.
        quiet: show no progress, only the result.
    """
    from pyrodrop import zoo
    from pyrodrop.analysis.zoo.check import check_each

    return 0 if check_each([zoo.entry(name) for name in entries], jobs=jobs, quiet=quiet) else FAILED


def _compare(folders: list[_Folder]) -> int:
    """One table of the models of several runs, by held-out log density.

    Args:
        folders: the folders of runs, with their results.json.
    """
    from pyrodrop.analysis.reports.runs import compare_by_data, read_run
    from pyrodrop.analysis.reports.terminal import print_table

    for number, table in enumerate(compare_by_data([read_run(folder) for folder in folders])):
        if number:
            print()
        print_table(table)
    return 0


def _report(folder: _Folder, *, output: Annotated[Path | None, "-o"] = None) -> int:
    """One page with a run's tables and pictures.

    Args:
        folder: the folder of a run, with its results.json.
        output: the page to write; report.html in the run's folder if left out.
    """
    from pyrodrop.analysis.reports.page import write_page
    from pyrodrop.analysis.reports.runs import read_run

    print(f"report: {write_page(read_run(folder), output or f'{folder}/report.html')}")
    return 0


def _completion(shell: Literal["bash", "zsh", "tcsh"]) -> int:
    """Print a script that completes commands, names and options in bash, zsh or tcsh.

    Completion in bash, from the next shell on:
    pyrodrop completion bash > ~/.local/share/bash-completion/completions/pyrodrop

    Args:
        shell: the shell: bash, zsh or tcsh.
    """
    try:
        import shtab
    except ImportError:
        raise Failed("completion needs shtab: pip install shtab") from None
    print(shtab.complete(_every_parser(shtab.FILE), shell))
    return 0


def _every_parser(files: Any) -> Parser:
    """One parser with all commands, jobs and entries and their options; `files` says how paths are completed."""
    from pyrodrop.analysis.experiments import JOBS
    from pyrodrop.zoo import every

    entries = every()
    whole = Parser("pyrodrop")
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        parser = commands.add_parser(name, help=Parser.of(name, command).description)
        parser.add_function(command, leave_out=["name"])  # of run, in whose place there are parsers
        names = parser.add_subparsers() if name == "run" else None
        for each in [*JOBS, *entries] if names else ():
            function, fixed, summary = _runs(each)
            of_job = names.add_parser(each, help=summary)  # type: ignore[union-attr]
            of_job.add_function(function, leave_out=fixed)
            _complete(of_job, entries, files)
        _complete(parser, entries, files)
    return whole


def _complete(parser: Parser, entries: Iterable[str], files: Any) -> None:
    """Say what the values of a parser's arguments are, beyond their choices."""
    for action in parser._actions:
        if action.metavar == "ENTRY":
            action.choices = list(entries)
        elif action.metavar in ("PATH", "RUN_DIR"):
            action.complete = files  # type: ignore[attr-defined]


COMMANDS: Mapping[str, Callable[..., int]] = {
    "run": _run,
    "list": _list,
    "show": _show,
    "pull": _pull,
    "check": _check,
    "compare": _compare,
    "report": _report,
    "completion": _completion,
}
