"""Processes by a name that no other process has, so that what a killed process left can be told from what is in use."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process, written as ``PLACE-PID-START``.

    Attributes:
        place: digits that name the machine and, in a container, the container: pids mean something only there.
        pid: its number, which is given to another process after its end.
        start: digits that name the moment of its start; ``0`` where the system does not say.
    """

    place: str
    pid: int
    start: str

    @classmethod
    def this(cls) -> Process:
        """The running process."""
        return cls(_place(), os.getpid(), _start(os.getpid()) or "0")

    @classmethod
    def of(cls, text: str) -> Process | None:
        """The process that was written as this text; None for another text."""
        place, _, rest = text.partition("-")
        pid, _, start = rest.partition("-")
        return cls(place, int(pid), start) if pid.isdecimal() and len(pid) < 12 and place and start else None

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.start}"

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine and container."""
        return self.place == _place()

    def runs(self) -> bool:
        """Whether it still runs. True also where that cannot be told, as for processes of other users."""
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except OSError:  # of another user
            pass
        start = _start(self.pid)
        return start is None or self.start in ("0", start)


def _start(pid: int) -> str | None:
    """When a process started, in digits; "ended" for one that has ended and was not waited for; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if fields[0] in "ZX" else _digits(f"{_boot()} {fields[19]}")


@functools.cache
def _place() -> str:
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return _digits(f"{socket.gethostname()} {namespace}")


@functools.cache
def _boot() -> str:
    """The name of the time since the machine was started: the system counts the starts of processes from there."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _digits(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
