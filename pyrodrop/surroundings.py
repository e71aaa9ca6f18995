"""Refuse calls inside blocks of PyTorch and Pyro that would change everything that the call computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pyrodrop.private_apis import in_function_transform, in_torchscript, pyro_handlers
from pyrodrop.threads import exclusive


def refuse(what: str) -> None:
    """Raise a RuntimeError that names such a block around a call, `what`; calls set gradients and inference mode.

    All threads share Pyro's handlers and torch's tracers, so it waits for calls in others that use them.
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


@contextmanager
def outside(what: str) -> Iterator[None]:
    """`refuse` for a block, or as a decorator for a function."""
    refuse(what)
    yield
