"""Processes by a name that no other process has, so that what a killed process left can be told from what is in use."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass

import psutil

_ROUNDED = 2  # seconds by which two readings of the start of a process may differ, since the clock is adjusted


@dataclass(frozen=True)
class Process:
    """A process, written as ``PLACE-PID-START``.

    Attributes:
        place: digits that name the machine and, in a container, the container: pids mean something only there.
        pid: its number, which is given to another process after its end.
        start: when it started, in seconds since 1970.
    """

    place: str
    pid: int
    start: int

    @classmethod
    def this(cls) -> Process:
        """The running process."""
        return cls(_place(), os.getpid(), int(psutil.Process().create_time()))

    @classmethod
    def of(cls, text: str) -> Process | None:
        """The process that was written as this text; None for another text."""
        place, *numbers = text.split("-")
        if len(numbers) != 2 or not all(number.isdecimal() and len(number) < 12 for number in numbers):
            return None
        return cls(place, *map(int, numbers))

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.start}"

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine and container."""
        return self.place == _place()

    def runs(self) -> bool:
        """Whether it still runs. False for one that has ended and was not waited for."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.start) < _ROUNDED and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # of another user
            return True


@functools.cache
def _place() -> str:
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.blake2b(f"{socket.gethostname()} {namespace}".encode(), digest_size=5).hexdigest()
