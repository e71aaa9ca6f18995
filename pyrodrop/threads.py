"""One lock for all that the threads of a process share: Pyro's handlers and store, functorch, torch's generator and tracers.

Calls that use any of it are in `exclusive`: in several threads they wait for each other, a prediction also for the end of a
training, and return the same bits as in a single thread. When a call ends, also with an error, Pyro's stack of handlers is
what it was before. Pyro's own `SVI`, `Predictive` and handlers do not take the lock: in a process with several threads, call
them within ``with pyrodrop.threads.exclusive()``.

`outside` raises an error inside of blocks of PyTorch and Pyro that would change everything that a call computes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyrodrop.private_apis import in_function_transform, in_torchscript, pyro_handlers, restore_handlers

_lock = threading.RLock()
_owner: int | None = None  # the thread that has it


@contextmanager
def exclusive() -> Iterator[None]:
    """Take the lock for a block, which may be within another; also a decorator. Its handlers of Pyro end with it."""
    global _owner
    with _lock:
        outer, _owner = _owner, threading.get_ident()
        handlers = tuple(pyro_handlers())
        try:
            yield
        finally:
            restore_handlers(handlers)
            _owner = outer


def reserved_elsewhere() -> bool:
    """Whether another thread is in such a block, so that Pyro's handlers are those of that thread."""
    return _owner not in (None, threading.get_ident())


@contextmanager
def outside(what: str) -> Iterator[None]:
    """Raise a RuntimeError that names such a block around a call, `what`; also a decorator of a function.

    Calls set gradients and inference mode themselves. All threads share Pyro's handlers and torch's tracers, so it waits for
    calls in others that use them.
    """
    with exclusive():
        new = torch.empty(0)
        blocks = {
            "torch.autocast": any(map(torch.is_autocast_enabled, ("cpu", "cuda"))),
            "a device or a mode whose tensors have no values": new.is_meta or type(new) is not Tensor,
            "a transform of torch.func or torch.jit.trace": in_function_transform() or in_torchscript(),
            "a handler of Pyro, which belongs into model or guide": bool(pyro_handlers()),
        }
    for block, active in blocks.items():
        if active:
            raise RuntimeError(
                f"{what} must be called outside of what changes all that it computes; it was inside {block}"
            )
    yield


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
