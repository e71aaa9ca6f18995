"""One lock for all that the threads of a process share: Pyro's handlers and store, functorch, torch's generator and tracers.

    exclusive()    calls that end soon and draw from seeds of their own, such as `predict`, `elbo`, `read` and `export`
    training()     calls that take long or draw from torch's generator as it is: `fit`, `sample`, a step of `compile_svi`
    sharing()      lets short calls of other threads into a training: between its steps, and while it calls `after_epoch`

Calls of several threads wait for each other, first come, first served, and give the bits that they give alone. Short calls
wait for some steps of a `fit`, trainings for its end. A call that has waited ten minutes for one and the same call of
another thread raises a RuntimeError. When a call ends, also with an error, Pyro's stack of handlers is what it was before.

Pyro's own `SVI`, `Predictive` and handlers do not take the lock: in a process with several threads, call them within
``with pyrodrop.threads.training()``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from pyrodrop.private_apis import handlers_restored, pyro_handlers

_PATIENCE = 600.0  # seconds that a call waits for one call of another thread


class _Lock:
    """A lock that its thread may take again; other threads get it in the order in which they asked.

    Attributes:
        owner: the thread that has it; None if it is free.
        depth: how often its thread has taken it.
        turns: how often it became free.
    """

    def __init__(self) -> None:
        self.owner: int | None = None
        self.depth = self.turns = 0
        self._guard = threading.Lock()
        self._line: deque[tuple[int, int, threading.Event]] = deque()

    def acquire(self, depth: int = 1) -> None:
        me = threading.get_ident()
        with self._guard:
            if self.owner in (None, me):  # where it is free nobody waits
                self.owner, self.depth = me, self.depth + depth
                return
            turn = (me, depth, threading.Event())
            self._line.append(turn)
        try:
            self._wait(turn[2])
        except BaseException:
            with self._guard:
                waits = turn in self._line
                if waits:
                    self._line.remove(turn)
            if not waits:
                self.release(depth)
            raise

    def _wait(self, called: threading.Event) -> None:
        turns = self.turns
        while not called.wait(_PATIENCE):
            if self.turns == turns:
                raise RuntimeError(
                    f"another thread has been in pyrodrop.fit, sample or another long call for {_PATIENCE:g} s; the threads "
                    "of a process share torch's generator and Pyro's handlers, so they take turns. Use one process per fit "
                    "(multiprocessing, joblib), or fit_replicates(...) for many fits at once"
                )
            turns = self.turns

    def release(self, depth: int = 1) -> None:
        with self._guard:
            self.depth -= depth
            if self.depth == 0:
                self.owner, self.turns = None, self.turns + 1
                if self._line:
                    self.owner, self.depth, called = self._line.popleft()
                    called.set()


class _Locks:
    """The locks of this process: of what is shared, and of trainings, which also take the first."""

    def __init__(self) -> None:
        self.shared, self.trainings = _Lock(), _Lock()


_locks = _Locks()


def _afresh() -> None:
    """New locks in a forked process, which has no other threads to release them."""
    global _locks
    before, _locks = _locks, _Locks()
    for lock, old in ((_locks.shared, before.shared), (_locks.trainings, before.trainings)):
        if old.owner == threading.get_ident():
            lock.owner, lock.depth = old.owner, old.depth


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


@contextmanager
def exclusive() -> Iterator[None]:
    """Reserve what is shared for this thread within the block, which ends soon and draws from its own seeds.

    Blocks can be nested. What the block leaves on Pyro's stack of handlers is taken from it.

    Raises:
        RuntimeError: another thread has had it for ten minutes.
    """
    lock = _locks.shared
    lock.acquire()
    try:
        with handlers_restored():
            yield
    finally:
        lock.release()


@contextmanager
def training() -> Iterator[None]:
    """As `exclusive`, for a block that may take long or draws from torch's generator; trainings wait for its end."""
    lock = _locks.trainings
    lock.acquire()
    try:
        with exclusive():
            yield
    finally:
        lock.release()


@contextmanager
def sharing() -> Iterator[None]:
    """Within a training: let short calls of other threads in until the block ends, and after those that wait go on.

    Under handlers of Pyro, which would handle these calls as well, they still wait.
    """
    lock = _locks.shared
    depth = 0 if pyro_handlers() else lock.depth
    if not depth:
        yield
        return
    lock.release(depth)
    try:
        yield
    finally:
        lock.acquire(depth)


def reserved_elsewhere() -> bool:
    """Whether another thread is in one of these blocks, so that Pyro's handlers are those of that thread."""
    return _locks.shared.owner not in (None, threading.get_ident())


class Tracer(fx.Tracer):
    """A tracer of `torch.fx` that leaves alone the modules that other threads call meanwhile.

    While it traces, `torch.fx` replaces ``nn.Module.__call__`` for all threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """As of `torch.fx.Tracer`, on the thread of the tracer."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)
