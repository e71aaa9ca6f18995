"""The command line: ``pyrodrop run``, ``list``, ``show`` and ``cite``.

Commands are functions: cyclopts makes their options and help pages from signatures and docstrings. An error is one line on
stderr, which begins with ``pyrodrop:``; an unexpected one is Python's traceback. Exit statuses:

    0     done
    1     the call failed: a file or folder, the network, memory, a training that diverged, an unexpected error
    2     the call is wrong: an unknown command, option or name, or a value that is not allowed
    130   interrupted
    141   the program that reads the output has closed it
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, get_args

from cyclopts import App, CycloptsError, Parameter, convert

from pyrodrop.failed import INSTALL, Failed

_MORE = """pyrodrop COMMAND --help and pyrodrop run NAME --help show the options.

Tables are as wide as the terminal, or as COLUMNS says; with NO_COLOR, and where the output is not a terminal, they are \
plain text."""
FAILED, WRONG, INTERRUPTED, NO_READER = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status, see the module's docstring."""
    if argv is None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # for a terminal that has no sign for what is printed
    try:
        status = _command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # a full disk or a closed pipe is found here and not at the interpreter's end
    except (Exception, KeyboardInterrupt) as error:
        status, line = _ended(error)
        if line:  # content of files may be part of it
            shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(line.split()))
            print(f"pyrodrop: {shown}", file=sys.stderr)
    return status


def _command(arguments: list[str]) -> int:
    """Call the command that the arguments name. Returns the exit status."""
    if arguments[:1] == ["run"] and arguments[1:2] and not arguments[1].startswith("-"):
        function, summary = _job(arguments[1])
        name = f"pyrodrop run {arguments[1]}"
        app = _app(name, help=f"{summary[:1].upper()}{summary[1:]}.", default_command=function)
        arguments = arguments[2:]
    else:
        app = _app("pyrodrop", help_epilogue=_MORE)
        for command in (run, list_, show, cite):
            app.command(command, name=command.__name__.rstrip("_"))
    try:
        result = app(arguments)
    except CycloptsError as error:
        name = " ".join([app.name[0], *(error.command_chain or ())])
        raise ValueError(f"{error} See {name} --help.") from None
    if not arguments and app.default_command is None:
        return WRONG
    return result if isinstance(result, int) else 0


def _app(name: str, **options: Any) -> App:
    """A command line that raises its errors and returns what the function returns."""
    return App(
        name,
        version=f"pyrodrop {version('pyrodrop')}",
        default_parameter=Parameter(negative=(), consume_multiple=1, converter=_converted),  # --data a b; no --no-quiet
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        **options,
    )


def _converted(kind: Any, tokens: Sequence[Any]) -> Any:
    """Convert values as cyclopts does, but refuse 1.5 as a whole number."""
    whole = int in (kind, *get_args(kind))
    return convert(kind, tokens, converter=(lambda _, value: int(value)) if whole else None)


def _job(name: str) -> tuple[Callable[..., Any], str]:
    """The function that runs under this name, and its summary."""
    from pyrodrop.analysis.jobs import JOBS, job
    from pyrodrop.checks import known
    from pyrodrop.zoo import ENTRIES

    if known(name, [*JOBS, *ENTRIES], "job or zoo entry", "pyrodrop list") in JOBS:
        return job(name), JOBS[name]
    from pyrodrop.analysis.zoo.train import run_entry

    return functools.partial(run_entry, ENTRIES[name]), ENTRIES[name].summary


def _ended(error: BaseException) -> tuple[int, str]:
    """The exit status of an error and its line; the traceback of an unexpected one is printed."""
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, ": ".join(filter(None, ("interrupted", text)))
    if isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError, ValueError):  # stdout may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails to flush it
        return NO_READER, ""
    if isinstance(error, OSError):
        file = error.filename2 or error.filename
        return FAILED, f"{file}: {error.strerror}" if file and error.strerror else text or type(error).__name__
    if isinstance(error, Failed | FloatingPointError) or INSTALL in text:
        return FAILED, text
    if isinstance(error, ValueError):
        return WRONG, text
    traceback.print_exception(error)
    return FAILED, ""


def run(name: str, /) -> None:
    """Run an experiment, or train an entry of the zoo.

    pyrodrop run NAME --help shows the options of each.

    Args:
        name: the name of a job or of a zoo entry: pyrodrop list has them all.
    """
    _command(["run", name])


def list_() -> None:
    """List what can be run, and the entries of the zoo."""
    from pyrodrop.analysis.jobs import JOBS
    from pyrodrop.analysis.reports.terminal import pairs, paragraph
    from pyrodrop.zoo import ENTRIES

    print("jobs (pyrodrop run JOB, in a clone of the repository)")
    pairs(JOBS)
    print()
    paragraph("zoo entries (pyrodrop show, run ENTRY; pyrodrop.zoo.entry(ENTRY))")
    pairs({name: entry.summary for name, entry in ENTRIES.items()})


def show(entry: str, /) -> None:
    """The card of an entry: its summary, published results and our reference.

    Args:
        entry: the name of a zoo entry, see pyrodrop list.
    """
    from pyrodrop import zoo
    from pyrodrop.analysis.zoo import card

    card.show(zoo.entry(entry))


def cite(entry: str, /) -> None:
    """BibTeX for citing an entry: its papers, its data, and this package.

    Args:
        entry: the name of a zoo entry, see pyrodrop list, or of an exact posterior.
    """
    from pyrodrop import zoo

    print(zoo.cite(entry))
