"""The state of modules that calls may change: training or evaluation mode, buffers, and Python attributes.

`Snapshot` finds what a call has changed; `undisturbed` restores the state of a network after a block.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

STAYS = "stays_in_training"  # attribute of a module whose mode does not change: a dropout of a network that was read

_MODULES_OWN = {
    *nn.Module().__dict__,
    "_flat_weights",
    "_flat_weight_refs",
}  # the last two: recurrent layers' second list
_VALUES = (type(None), bool, int, float, complex, str, bytes)  # immutable


def mode_changes(module: nn.Module) -> bool:
    """Whether a module is in training mode and is not marked to stay in it (`STAYS`)."""
    return module.training and STAYS not in module.__dict__


class Snapshot:
    """Buffers and Python attributes of modules as they are now."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._buffers = [
            (module, name, value, value.detach().clone(), value._version)
            for module in modules.values()
            for name, value in module._buffers.items()
            if value is not None
        ]
        self._attributes = [(name, module, _attributes(module)) for name, module in modules.items()]

    def moved(self) -> list[tuple[nn.Module, str]]:
        """The buffers that have been replaced or written to, also without a new version, as batch norm does."""
        return [
            (module, name)
            for module, name, value, old, version in self._buffers
            if module._buffers[name] is not value or value._version != version or not torch.equal(value, old)
        ]

    def changed(self) -> list[tuple[nn.Module, str]]:
        """Every attribute that is new, missing or has another value: its module and its full name, ``layer.calls``."""
        return [
            (module, f"{name}.{attribute}" if name else attribute)
            for name, module, before in self._attributes
            for attribute in _changed(module, before)
        ]

    def restore(self) -> bool:
        """Restore buffers and attributes. Returns whether any had changed."""
        restored = False
        with torch.no_grad():
            for module, name, value, old, _ in self._buffers:
                written = not torch.equal(value, old)
                restored |= written or module._buffers[name] is not value
                module._buffers[name] = value
                if written:
                    value.copy_(old)
        for _, module, before in self._attributes:
            for name in _changed(module, before):
                restored = True
                module.__dict__.pop(name, None)
                if name in before:
                    module.__dict__[name] = _copied(before[name])
        return restored


def say_changes(names: Sequence[str]) -> str:
    """A sentence that names the attributes that a forward changes; empty if it changes none."""
    return f"its forward changes the attributes {', '.join(names)}" if names else ""


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Restore buffers and Python attributes of the modules of a network after the block."""
    before = Snapshot(dict(network.named_modules()))
    try:
        yield
    finally:
        before.restore()


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of a module's Python attributes that a forward may change: numbers, strings, tensors, collections of these."""
    return {
        name: _copied(value) for name, value in module.__dict__.items() if name not in _MODULES_OWN and _plain(value)
    }


def _copied(value: Any) -> Any:
    """A copy; tensors are detached from their graph."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value if isinstance(value, _VALUES) else copy.deepcopy(value)


def _changed(module: nn.Module, before: dict[str, Any]) -> list[str]:
    """Names of the attributes that are new, missing or of another value than in `before`, a result of `_attributes`."""
    now = {n: value for n, value in module.__dict__.items() if n in before or (n not in _MODULES_OWN and _plain(value))}
    return [
        name for name in sorted(now.keys() | before.keys()) if not _same(now.get(name, _NONE), before.get(name, _NONE))
    ]


_NONE = object()


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b) or a != a  # NaN counts as equal to NaN


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_plain(item) for pair in value.items() for item in pair)
    return isinstance(value, (*_VALUES, Tensor))
