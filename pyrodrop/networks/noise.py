"""Refuse networks that draw random numbers themselves.

All noise of a model comes from its guide. Random numbers that a network draws itself (dropout layers in training mode,
``F.dropout``, stochastic depth, ``torch.rand`` in a forward) would be additional noise that belongs to no posterior. Dropout
layers are recognised by their type, everything else by running the network and comparing the states of the random
generators before and after.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def check_dropout_layers(network: nn.Module) -> None:
    """Raise a ValueError for dropout layers, and layers with built-in dropout, in training mode at a rate above 0."""
    active = {name: module for name, module in network.named_modules() if module.training}
    own = [
        name for name, module in active.items() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    ]
    inner = [
        name or type(network).__name__
        for name, module in active.items()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    ]
    if own or inner:
        layers = [f"dropout layers {', '.join(own)}: put nn.Identity() in their place"] if own else []
        layers += [f"layers {', '.join(inner)} that drop units: build them with dropout=0"] if inner else []
        raise ValueError(
            f"{_DETERMINISTIC} a network with {'; and with '.join(layers)} (or put them in evaluation mode). "
            "If the network was trained with them, pyrodrop.read reads them as a posterior"
        )


def random_module(network: nn.Module, call: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
    """The result of a call, and ``, in`` with the innermost module that draws random numbers in it, None if none does.

    Args:
        network: the module whose submodules are named.
        call: runs the network once.
    """
    watch = _Watch(network)
    before = _generators()
    with watch:
        result = call()
    return result, None if _generators() == before else watch.culprit()


def check_noiseless(network: nn.Module, call: Callable[[], Tensor]) -> None:
    """Raise a ValueError, naming the innermost module, if a call draws random numbers or two calls differ.

    Args:
        network: the module whose submodules are named in the message.
        call: runs the network once, always on the same input and weights.
    """
    first, culprit = random_module(network, call)
    if culprit is not None:
        raise ValueError(
            f"{_DETERMINISTIC} a network that draws random numbers itself{culprit}. Dropout and stochastic depth in "
            "evaluation mode, or at rate 0, draw none; pyrodrop.read reads those of a trained network as a posterior"
        )
    second = call()
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ValueError(
            f"{_DETERMINISTIC} a network whose outputs change by up to {float((first - second).abs().max()):.2g} when it is "
            "called again with the same input"
        )


class _Watch:
    """Hooks that find the innermost module whose call advances a random generator."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.found: list[str] = []
        self._before: list[Any] = []

    def __enter__(self) -> None:
        names = {module: name for name, module in self.network.named_modules()}
        self._handles: list[Any] = []
        for module in names:
            self._handles.append(module.register_forward_pre_hook(lambda *_: self._before.append(_generators())))
            self._handles.append(module.register_forward_hook(lambda own, *_: self._after(names[own], own)))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _after(self, name: str, module: nn.Module) -> None:
        if _generators() != self._before.pop():
            self.found.append(f"{name!r} ({type(module).__name__})" if name else type(module).__name__)

    def culprit(self) -> str:
        """The first module that finished a call in which numbers were drawn: submodules finish first, so the innermost."""
        return f", in {self.found[0]}" if self.found else ""


def _generators() -> tuple[Any, ...]:
    """States of the generators of torch, Python and NumPy."""
    _, keys, position, *_ = np.random.get_state(legacy=True)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return (*(state.numpy().tobytes() for state in states), random.getstate(), keys.tobytes(), position)  # type: ignore[union-attr]


_DETERMINISTIC = (
    "the network of a model must be deterministic, its noise comes from the guide (guides.BernoulliDropout for dropout); "
    "got"
)
