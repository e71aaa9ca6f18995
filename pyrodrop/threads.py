"""One thread at a time: torch's generator, its tracer and Pyro's stack of handlers are those of the process, not a thread's.

Short work (`predict`, `elbo`, `compress` and their kin) waits for each other, so that each draw gives the numbers of its
seed. A training is not waited for: what another thread asks for meanwhile is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_POLL = 0.05  # seconds between looks at whether another thread has begun to train


class _State:
    """Who draws and who trains, in this process."""

    def __init__(self) -> None:
        self.drawing = threading.RLock()
        self.changing = threading.Lock()
        self.trainer: int | None = None
        self.depth = 0


_state = _State()


def _afresh() -> None:
    """In a forked process, whose other threads are gone with the locks that they held."""
    global _state
    before, _state = _state, _State()
    if before.trainer == threading.get_ident():
        _state.trainer, _state.depth = before.trainer, before.depth


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


@contextmanager
def drawing() -> Iterator[None]:
    """Have generator and handlers for this thread alone, after other threads' draws; blocks of one thread nest.

    Raises:
        RuntimeError: another thread trains.
    """
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
    """The same for as long as a training takes.

    Raises:
        RuntimeError: another thread trains already.
    """
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
            "another thread is in pyrodrop.fit: the threads of a process share torch's random numbers and Pyro's handlers: "
            "while one trains no other can train, predict or draw. Use a process for each (multiprocessing, joblib), or "
            "fit(replicates=...) for many fits at once"
        )
