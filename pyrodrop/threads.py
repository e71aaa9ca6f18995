"""Locks for threads: torch's generator, its tracer and Pyro's handler stack are shared by all threads of a process.

Short calls (`predict`, `elbo`, `compress` and similar) of several threads wait for each other, so that each gives the random
numbers of its seed. They do not wait for a training: while one thread trains, calls of other threads raise a RuntimeError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_POLL = 0.05  # seconds between checks whether another thread has begun to train


class _State:
    """The locks, and which thread trains, of this process."""

    def __init__(self) -> None:
        self.drawing = threading.RLock()
        self.changing = threading.Lock()
        self.trainer: int | None = None
        self.depth = 0


_state = _State()


def _afresh() -> None:
    """Reset the locks in a forked process, which has no other threads to release them."""
    global _state
    before, _state = _state, _State()
    if before.trainer == threading.get_ident():
        _state.trainer, _state.depth = before.trainer, before.depth


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


@contextmanager
def drawing() -> Iterator[None]:
    """Reserve generator and handlers for this thread within the block; waits for other threads. Blocks can be nested."""
    state = _state
    _refuse(state)
    while not state.drawing.acquire(timeout=_POLL):
        _refuse(state)
    try:
        yield
    finally:
        state.drawing.release()


@contextmanager
def training() -> Iterator[None]:
    """Reserve generator and handlers for a training; calls of other threads are refused until the block ends."""
    state = _state
    with state.changing:
        _refuse(state)
        state.trainer = threading.get_ident()
        state.depth += 1
    try:
        with state.drawing:
            yield
    finally:
        with state.changing:
            state.depth -= 1
            if state.depth == 0:
                state.trainer = None


def _refuse(state: _State) -> None:
    if state.trainer not in (None, threading.get_ident()):
        raise RuntimeError(
            "another thread is in pyrodrop.fit; the threads of a process share torch's generator and Pyro's handlers, so no "
            "other thread can train, predict or sample meanwhile. Use one process per fit (multiprocessing, joblib), or "
            "fit_replicates(...) for many fits at once"
        )
