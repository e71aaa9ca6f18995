"""One lock for all that the threads of a process share: Pyro's handlers and store, functorch, torch's generator and tracers.

    exclusive()    short calls that draw from their own seeds, such as `predict`, `elbo` and `read`
    training()     long calls, or calls that draw from torch's generator: `fit`, `sample`, a step of `compile_svi`
    sharing()      lets short calls of other threads run within a training: between steps, and during `after_epoch`

Calls of several threads wait for each other, first come, first served, and return the same bits as in a single thread. A
short call waits for some steps of `fit` or `sample`; a long call waits for the end of another. A call that has waited ten
minutes for one call of another thread raises a RuntimeError. When a call ends, also with an error, Pyro's stack of handlers
is what it was before.

Pyro's own `SVI`, `Predictive` and handlers do not take the lock: in a process with several threads, call them within
``with pyrodrop.threads.training()``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from pyrodrop.private_apis import pyro_handlers, restore_handlers

_PATIENCE = 600.0  # seconds that a call waits for one call of another thread


class _Lock:
    """A reentrant lock that other threads get in the order in which they asked for it.

    Attributes:
        owner: the thread that has it; None if it is free.
        depth: how often its thread has taken it.
    """

    def __init__(self) -> None:
        self.owner: int | None = None
        self.depth = 0
        self.afresh()

    def afresh(self) -> None:
        """Forget all threads but this one."""
        if self.owner != threading.get_ident():
            self.owner, self.depth = None, 0
        self._freed = threading.Condition()
        self._line: list[object] = []

    def acquire(self, depth: int = 1, *, patient: bool = False) -> None:
        """Take the lock `depth` times, without waiting if this thread has it already.

        Raises:
            RuntimeError: another thread has had it for `_PATIENCE` seconds, unless this one is `patient`.
        """
        me = threading.get_ident()
        if self.owner == me:
            self.depth += depth
            return
        with self._freed:
            if self.owner is None and not self._line:
                self.owner, self.depth = me, depth
                return
            turn = object()
            self._line.append(turn)
            try:
                while self.owner is not None or self._line[0] is not turn:
                    if not self._freed.wait(_PATIENCE) and not patient:
                        raise RuntimeError(
                            f"another thread has been in pyrodrop.fit, sample or another long call for {_PATIENCE:g} s; the "
                            "threads of a process share torch's generator and Pyro's handlers, so they take turns. Use one "
                            "process per fit (multiprocessing, joblib), or fit_replicates(...) for many fits at once"
                        )
                self.owner, self.depth = me, depth
            finally:
                self._line.remove(turn)
                if self.owner is None:  # an error while its turn came
                    self._freed.notify_all()

    def release(self, depth: int = 1) -> None:
        """Release the lock `depth` times; if it becomes free, the thread that has waited longest gets it."""
        with self._freed:
            self.depth -= depth
            if self.depth == 0:
                self.owner = None
                self._freed.notify_all()


_shared, _trainings = _Lock(), _Lock()  # trainings take both, short calls the first


def _afresh() -> None:
    """Release the locks of other threads in a forked process, in which those threads do not run."""
    for lock in (_shared, _trainings):
        lock.afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


@contextmanager
def exclusive() -> Iterator[None]:
    """Take the lock for a short block that draws from its own seeds; also a decorator.

    Blocks can be nested. Handlers that the block leaves on Pyro's stack are removed.

    Raises:
        RuntimeError: another thread has had the lock for ten minutes.
    """
    _shared.acquire()
    handlers = tuple(pyro_handlers())
    try:
        yield
    finally:
        restore_handlers(handlers)
        _shared.release()


@contextmanager
def training() -> Iterator[None]:
    """As `exclusive`, for a block that may take long or draws from torch's generator. Only one such block runs at a time."""
    _trainings.acquire()
    try:
        with exclusive():
            yield
    finally:
        _trainings.release()


@contextmanager
def sharing() -> Iterator[None]:
    """Within a training, let short calls of other threads run during the block, and at its end those that already wait.

    Inside handlers of Pyro, which would also handle those calls, they have to wait.
    """
    depth = _shared.depth
    if _shared.owner != threading.get_ident() or pyro_handlers():
        yield
        return
    _shared.release(depth)
    try:
        yield
    finally:
        _shared.acquire(depth, patient=True)


def reserved_elsewhere() -> bool:
    """Whether another thread is in one of these blocks, so that Pyro's handlers are those of that thread."""
    return _shared.owner not in (None, threading.get_ident())


class Tracer(fx.Tracer):
    """A tracer of `torch.fx` that does not record the calls of modules by other threads.

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
