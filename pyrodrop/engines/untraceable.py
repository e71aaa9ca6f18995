"""The error for a training step that cannot be traced or compiled, and what is done then: the next best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyrodrop.private_apis import MissingApi

N = TypeVar("N")
T = TypeVar("T")


class Untraceable(RuntimeError):
    """A training step cannot be turned into a graph or a compiled program; the message says why."""


@contextmanager
def needs_private_apis() -> Iterator[None]:
    """Raise `Untraceable` where the installed PyTorch lacks a private API that the block or function needs."""
    try:
        yield
    except MissingApi as error:
        raise Untraceable(str(error)) from error


def first_that_works(
    candidates: Iterable[tuple[N, Callable[[], T]]], failed: Callable[[N, Untraceable], object]
) -> tuple[N, T]:
    """The first of some candidates, by name, whose function does not raise `Untraceable`, with what it returns.

    Args:
        candidates: the best one first.
        failed: called with the name and the error of every one in whose place another is tried.

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
