"""The error for a training step that cannot be traced or compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyrodrop.private_apis import MissingApi


class Untraceable(RuntimeError):
    """A training step cannot be turned into a graph or a compiled program; the message says why."""


@contextmanager
def needs_private_apis() -> Iterator[None]:
    """Raise `Untraceable` where the installed PyTorch lacks a private API that the block or function needs."""
    try:
        yield
    except MissingApi as error:
        raise Untraceable(str(error)) from error
