"""Refuse networks that draw random numbers themselves.

All noise of a model comes from its guide. Random numbers that a network draws itself (dropout layers in training mode,
``F.dropout``, stochastic depth, ``torch.rand`` in a forward) would be additional noise that belongs to no posterior. Dropout
layers are recognised by their type, everything else by running the network and comparing the states of the random
generators before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from pyrodrop.devices import drawn_outside_torch, outside_torch
from pyrodrop.private_apis import in_function_transform, intercepted

T = TypeVar("T")


def check_dropout_layers(network: nn.Module) -> None:
    """Raise a ValueError for dropout layers, and layers with built-in dropout, in training mode at a rate above 0."""
    active = {name: module for name, module in network.named_modules() if module.training}
    dropping = [
        name for name, module in active.items() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    ]
    inner = [
        name or type(network).__name__
        for name, module in active.items()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    ]
    if dropping or inner:
        layers = [f"dropout layers {', '.join(dropping)}: put nn.Identity() in their place"] if dropping else []
        layers += [f"layers {', '.join(inner)} that drop units: build them with dropout=0"] if inner else []
        raise ValueError(
            f"{_DETERMINISTIC} a network with {'; and with '.join(layers)} (or put them in evaluation mode). "
            "If the network was trained with them, pyrodrop.read reads them as a posterior"
        )


def random_module(network: nn.Module, call: Callable[[], T]) -> tuple[T, str | None]:
    """The result of a call, and ``, in`` with the innermost module that draws random numbers in it, None if none does.

    Args:
        call: runs the network once; called again where it draws.
    """
    before, outside = _of_torch(), outside_torch()
    result = call()
    drawn = _of_torch() != before and _draws_by_torch(call)
    if not drawn and not drawn_outside_torch(outside, call):
        return result, None
    with _Watch(network) as watch:
        call()
    return result, watch.culprit()


def _draws_by_torch(call: Callable[[], object]) -> bool:
    """Whether a call draws from a generator of torch, on this thread alone; others may draw from the same one meanwhile."""
    drawn = False

    def watch(operation: Any, args: Any, kwargs: Any) -> Any:
        nonlocal drawn
        drawn |= torch.Tag.nondeterministic_seeded in operation.tags
        return operation(*args, **kwargs)

    with intercepted(watch):
        call()
    return drawn


def say_noise(what: str) -> str:
    """The error message for a network that is not deterministic; `what` is what it does."""
    return f"{_DETERMINISTIC} a network {what}"


class _Watch:
    """Hooks that find the innermost module whose call advances a random generator."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.culprits: list[str] = []
        self._before: list[Any] = []

    def __enter__(self) -> _Watch:
        names = {module: name for name, module in self.network.named_modules()}
        self._handles: list[Any] = []
        for module in names:
            self._handles.append(module.register_forward_pre_hook(lambda *_: self._before.append(_generators())))
            self._handles.append(module.register_forward_hook(lambda module, *_: self._after(names[module], module)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _after(self, name: str, module: nn.Module) -> None:
        if _generators() != self._before.pop():
            self.culprits.append(f"{name!r} ({type(module).__name__})" if name else type(module).__name__)

    def culprit(self) -> str:
        """The first module that finished a call in which numbers were drawn: submodules finish first, so the innermost."""
        return f", in {self.culprits[0]}" if self.culprits else ""


def _of_torch() -> list[bytes]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return [state.numpy().tobytes() for state in states]


def _generators() -> tuple[Any, ...]:
    if in_function_transform():  # the state of torch's generator has no values there
        return outside_torch()
    return (*_of_torch(), *outside_torch())


_DETERMINISTIC = (
    "the network of a model must be deterministic, its noise comes from the guide (guides.BernoulliDropout for dropout); "
    "got"
)
