"""Refuse calls inside contexts of PyTorch and Pyro that would change everything that the call computes.

    tensors without values   torch.device("meta"), FakeTensorMode
    other numbers            torch.autocast; a handler of Pyro, such as poutine.scale, which acts on every call of the model
    tracing                  a transform of torch.func, torch.jit.trace

The error names the context. `fit` and similar calls turn gradients on and inference mode off themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pyrodrop.private_apis import in_function_transform, in_torchscript, pyro_handlers


def refuse_without_values(what: str) -> None:
    """Raise a RuntimeError where new tensors have no values.

    Args:
        what: what is called, for the message.
    """
    new = torch.empty(0)
    if new.is_meta:
        raise _refusal(what, "where the default device is torch.device('meta'), whose tensors have no values")
    if type(new) is not Tensor:
        raise _refusal(what, f"inside a mode whose new tensors are {type(new).__name__}s and have no values")


def refuse(what: str) -> None:
    """As `refuse_without_values`; also raise a RuntimeError inside a handler of Pyro. For calls of a model and a guide."""
    refuse_without_values(what)
    handlers = pyro_handlers()
    if handlers:
        kind = type(handlers[0]).__name__
        hint = "wrap the model or the guide in it instead" if kind != "plate" else "open plates in the model instead"
        raise _refusal(what, f"inside a handler of Pyro, {kind}, which would act on every call of its model: {hint}")


@contextmanager
def outside(what: str) -> Iterator[None]:
    """Raise a RuntimeError inside any of these contexts; for a block, or as a decorator for the calls of a function."""
    refuse(what)
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            where = f"inside torch.autocast({device!r}, {dtype}), which rounds what it computes"
            raise _refusal(what, f"{where}: fit(..., precision='bfloat16') uses it for matrix products alone")
    if in_function_transform() or in_torchscript():
        raise _refusal(what, "inside a transform of torch.func or torch.jit.trace, which cannot follow a training")
    yield


def _refusal(what: str, where: str) -> RuntimeError:
    return RuntimeError(f"{what} must be called outside of what changes all that it computes; it was called {where}")
