"""Training and evaluation mode of modules, and contexts that restore a module's state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

STAYS = "stays_in_training"  # attribute of a module whose mode does not change: a dropout of a network that was read

_OWN = {"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_OWN |= {"_flat_weights", "_flat_weight_refs"}  # in which recurrent layers keep their parameters a second time


def mode_changes(module: nn.Module) -> bool:
    """Whether a module is in training mode and does not stay in it (`STAYS`)."""
    return module.training and STAYS not in module.__dict__


@contextmanager
def evaluating(*parts: Any) -> Iterator[None]:
    """Put these modules in evaluation mode within the block, and restore the mode of every submodule afterwards.

    Modules that are in evaluation mode already are not written to, so threads may share a trained model. Arguments that are
    not modules are ignored, and so are the dropouts of a network that was read, whose model asks for them or not.
    """
    training = [
        module for part in parts if isinstance(part, nn.Module) for module in part.modules() if mode_changes(module)
    ]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def undisturbed(*parts: Any) -> Iterator[None]:
    """Restore buffers and Python attributes of these modules after the block; arguments that are not modules are ignored."""
    modules = list(dict.fromkeys(module for part in parts if isinstance(part, nn.Module) for module in part.modules()))
    buffers = [
        (module, name, value, value.detach().clone(), value._version)
        for module in modules
        for name, value in module._buffers.items()
        if value is not None
    ]
    attributes = {module: attributes_of(module) for module in modules}
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, value, old, version in buffers:
                module._buffers[name] = value
                if value._version != version or not torch.equal(
                    value, old
                ):  # batch norm updates its buffers without a new version
                    value.copy_(old)
        for module, before in attributes.items():
            for name in changed_attributes(module, before):
                module.__dict__.pop(name, None)
                if name in before:
                    module.__dict__[name] = before[name]


@contextmanager
def repeatable(model: Any) -> Iterator[None]:
    """Restore the attributes that a model's forward changes (`changes_itself`) after the block; does nothing for others."""
    if not getattr(model, "changes_itself", ""):
        yield
        return
    with undisturbed(model):
        yield


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """Copies of a module's Python attributes that a forward may change: numbers, strings, tensors, collections of these."""
    return {name: _copied(value) for name, value in module.__dict__.items() if _is_state(name, value)}


def _copied(value: Any) -> Any:
    """A copy; tensors are detached from their graph."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return copy.deepcopy(value)


def changed_attributes(module: nn.Module, before: dict[str, Any]) -> list[str]:
    """Names of the attributes that are new, missing or of another value than in `before`, a result of `attributes_of`."""
    now = {name: value for name, value in module.__dict__.items() if name in before or _is_state(name, value)}
    return [
        name for name in sorted(now.keys() | before.keys()) if not _same(now.get(name, _NONE), before.get(name, _NONE))
    ]


_NONE = object()


def _same(one: Any, two: Any) -> bool:
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    return bool(one == two) or one != one  # NaN counts as equal to NaN


def _is_state(name: str, value: Any) -> bool:
    """Whether an attribute is the module's own data, of a type that can be copied and compared."""
    if name in _OWN or name.startswith("_forward_") or name.startswith("_backward_") or name.endswith("_hooks"):
        return False
    return _plain(value)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_plain(item) for pair in value.items() for item in pair)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | Tensor)
