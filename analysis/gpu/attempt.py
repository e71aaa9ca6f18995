"""One attempt at a command, in a process of its own that is ended after a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pyrodrop

_GRACE = 10.0  # seconds between asking a process to end and ending it
_LINES = 20  # of the log that are kept in the record


@dataclass(frozen=True)
class Attempt:
    """What came of it.

    Attributes:
        status: of the process; None if it was ended at the limit.
        seconds: how long it ran.
        tail: the last lines that it wrote.
    """

    status: int | None
    seconds: float
    tail: list[str]


def attempt(words: Sequence[str], log: Path, limit: float) -> Attempt:
    """Run ``python -m`` with these words; its output goes to the end of a file.

    The processes that it starts are ended with it, also if this process is interrupted or asked to end.

    Args:
        words: what follows ``python -m``.
        log: the file for its output.
        limit: seconds after which it is ended.
    """
    start = time.perf_counter()
    with log.open("ab") as output:
        output.write(f"\n$ python -m {' '.join(words)}\n".encode())
        output.flush()
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_path()), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        with _asked_to_end():
            try:
                status: int | None = process.wait(max(0.0, limit))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
    with log.open("rb") as output:
        output.seek(begin)
        text = output.read().decode(errors="replace")
    return Attempt(status, time.perf_counter() - start, text.splitlines()[-_LINES:])


def _path() -> list[str]:
    """Where the process finds this package, whether it is installed or not."""
    own = str(Path(str(pyrodrop.__file__)).resolve().parents[1])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys([own, *filter(None, given)]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process with all that it has started: its session."""
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            if number is signal.SIGKILL or not _left(process.pid):
                return


def _left(session: int) -> bool:
    """Whether a process of the session runs."""
    try:
        os.killpg(session, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """Treat SIGTERM, as of ``timeout``, as an interruption from the keyboard within the block."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
