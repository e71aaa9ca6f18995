"""Find the modules of a network that draw random numbers.

All noise of a model comes from its guide. Random numbers that a network draws itself (``F.dropout``, stochastic depth,
``torch.rand`` in a forward) would be noise that is not part of the posterior. They are found by running the network and
comparing the states of the random generators before and after.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from pyrodrop.devices import drawn_outside_torch, outside_torch
from pyrodrop.private_apis import intercepted

T = TypeVar("T")


def random_module(network: nn.Module, call: Callable[[], T]) -> tuple[T, str | None]:
    """The result of a call; and ``, in`` with the innermost module that draws in it, empty if unknown, None if none does.

    Args:
        call: runs the network once; called again if random states have changed, since another thread may have drawn.
    """
    before, before_outside = _of_torch(), outside_torch()
    result = call()
    moved = _of_torch() != before
    outside = drawn_outside_torch(before_outside, call)
    if not moved and not outside:
        return result, None
    drawing = _drawing(network, call, outside)
    if drawing:
        return result, f", in {drawing[0]}"
    return result, "" if outside else None


def _drawing(network: nn.Module, call: Callable[[], object], outside: bool) -> list[str]:
    """The modules whose operations draw from torch's generators on this thread in a call, in order.

    Args:
        outside: whether the call draws outside torch, too; such a draw is attributed to the module of the next operation.
    """
    names = {module: name for name, module in network.named_modules()}
    drawing: list[str] = []
    before_outside = outside_torch()

    def watch(operation: Any, args: Any, kwargs: Any) -> Any:
        nonlocal before_outside
        seeded = torch.Tag.nondeterministic_seeded in operation.tags  # also of operations that may not draw
        before = _of_torch() if seeded else []
        result = operation(*args, **kwargs)
        if (seeded and _of_torch() != before) or (outside and outside_torch() != before_outside):
            drawing.append(_running(names))
            before_outside = outside_torch()
        return result

    with intercepted(watch):
        call()
    return drawing


def _running(names: dict[nn.Module, str]) -> str:
    """The innermost of these modules whose method is running."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and module in names:
            return f"{names[module]!r} ({type(module).__name__})" if names[module] else type(module).__name__
    return "its backward pass"


def _of_torch() -> list[bytes]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return [state.numpy().tobytes() for state in states]
