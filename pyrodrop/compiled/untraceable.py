"""The error for a training step that cannot be traced or compiled, and the choice of the next best engine."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyro
import torch

N = TypeVar("N")
T = TypeVar("T")


class Untraceable(RuntimeError):
    """A training step cannot be turned into a graph or a compiled program; the message says why."""


def first_that_works(
    candidates: Iterable[tuple[N, Callable[[], T]]], failed: Callable[[N, Untraceable], object]
) -> tuple[N, T]:
    """The name and the result of the first candidate whose function does not raise `Untraceable`.

    Args:
        candidates: names and functions, the best one first.
        failed: called with the name and the error of every candidate that fails, except the last one of all.

    Raises:
        Untraceable: the error of the last candidate.
    """
    broken: tuple[N, Untraceable] | None = None
    for name, make in candidates:
        if broken is not None:
            failed(*broken)
        try:
            return name, make()
        except Untraceable as error:
            broken = name, error
    assert broken is not None
    raise broken[1]


def first_line(error: Exception) -> str:
    """The class of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def users_line(error: BaseException) -> str:
    """The innermost line of the user's program in the traceback of an error, as ", at program.py, line 12: if x > 0:".

    Empty if all lines are from PyTorch, Pyro, NumPy, this package or Python's standard library.
    """
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    file, number = next((line for line in reversed(lines) if _is_users(line[0])), ("", 0))
    return file and f", at {Path(file).name}, line {number}: {linecache.getline(file, number).strip()}"


def _is_users(file: str) -> bool:
    python, packages = (sysconfig.get_path(name) for name in ("stdlib", "purelib"))
    others = [str(Path(package).parent) for package in (torch.__file__, pyro.__file__, np.__file__)]
    others.append(str(Path(__file__).parents[1]))
    if file.startswith("<frozen") or any(Path(file).is_relative_to(other) for other in others):
        return False
    return Path(file).is_relative_to(packages) or not Path(file).is_relative_to(python)
