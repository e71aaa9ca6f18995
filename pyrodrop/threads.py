"""One lock for all that the threads of a process share: Pyro's handlers and store, functorch, torch's generator and tracers.

    exclusive()    calls that end soon and draw from seeds of their own, such as `predict`, `elbo`, `read` and `export`
    training()     calls that take long or draw from torch's generator as it is: `fit`, `sample`, a step of `compile_svi`
    sharing()      lets short calls of other threads into a training: between steps, and while it calls `after_epoch`

Calls of several threads wait for each other, first come, first served, and give the bits that they give alone. Short calls
wait for some steps of `fit` or `sample`, trainings for their end. A call that has waited ten minutes for one and the same
call of another thread raises a RuntimeError. When a call ends, also with an error, Pyro's stack of handlers is what it was
before.

Pyro's own `SVI`, `Predictive` and handlers do not take the lock: in a process with several threads, call them within
``with pyrodrop.threads.training()``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from torch import fx, nn

from pyrodrop.private_apis import pyro_handlers, restore_handlers

P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE = 600.0  # seconds that a call waits for one call of another thread


class _Lock:
    """A lock that its thread may take again; other threads get it in the order in which they asked.

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
        """Take it `depth` times, at once for a thread that has it.

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
        """Give it up `depth` times; where it becomes free, the first thread of the line has it."""
        with self._freed:
            self.depth -= depth
            if self.depth == 0:
                self.owner = None
                self._freed.notify_all()


_shared, _trainings = _Lock(), _Lock()  # of all that is shared, and of trainings, which also take the first


def _afresh() -> None:
    """Free the locks of other threads in a forked process, which has none of them."""
    for lock in (_shared, _trainings):
        lock.afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


class _Reserved:
    """A block, or the calls of a function, in which locks are of this thread, and that restores Pyro's stack of handlers."""

    def __init__(self, training: bool) -> None:
        self._training = training

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with _Reserved(self._training):
                return function(*args, **kwargs)

        return call

    def __enter__(self) -> None:
        self._taken = (_trainings, _shared) if self._training else (_shared,)
        for number, lock in enumerate(self._taken):
            try:
                lock.acquire()
            except BaseException:
                self._release(number)
                raise
        self._handlers = tuple(pyro_handlers())

    def __exit__(self, *_: object) -> None:
        restore_handlers(self._handlers)
        self._release(len(self._taken))

    def _release(self, count: int) -> None:
        for lock in self._taken[:count]:
            lock.release()


def exclusive() -> _Reserved:
    """Reserve what is shared for this thread within a block, which ends soon and draws from its own seeds.

    Also a decorator. Blocks can be nested. What the block leaves on Pyro's stack of handlers is taken from it.

    Raises:
        RuntimeError: another thread has had it for ten minutes.
    """
    return _Reserved(training=False)


def training() -> _Reserved:
    """As `exclusive`, for a block that may take long or draws from torch's generator; trainings wait for its end."""
    return _Reserved(training=True)


@contextmanager
def sharing() -> Iterator[None]:
    """Within a training: let short calls of other threads run during the block; it ends after those that already wait.

    Under handlers of Pyro, which would handle these calls as well, they still wait.
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
