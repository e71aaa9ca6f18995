"""What a Pyro program reads beside its arguments and the values of tensors: numbers, flags and objects.

They are in attributes of modules and other objects, in closures and in global names. A trace freezes them, so every step
looks whether they are as they were. Only what the code of model and guide names is found: not what a function of another
library reads, or a number in an array.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.distributions import Transform

_LIBRARIES = ("torch", "pyro", "pyrodrop", "numpy", "builtins", "functools", "math")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)  # that nothing changes in place
_CONTAINERS = (list, tuple, set, frozenset, dict)
_ITEMS = 100  # of a container; of a longer one only the object is compared
_READ = {"training", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks"}
_UNREAD = set(nn.Module().__dict__) - _READ  # of a module's attributes; the step compares parameters
_ABSENT = object()


class Watched:
    """What some callables read, as it is now."""

    def __init__(self, *parts: Any, modes: bool = True) -> None:
        self._unread = _UNREAD if modes else _UNREAD | {"training"}
        self._objects: list[tuple[Any, Any, Any]] = []  # a mapping, a name in it, the object
        self._contents: list[tuple[Any, Any, Any, Any]] = []  # and a copy of a container, and what it has
        self._empty: list[tuple[Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._seen: dict[int, Any] = {}  # which keeps the objects, so that no other gets the same id
        for part in parts:
            self._visit(part, inner=True)

    @property
    def modules(self) -> nn.ModuleList:
        """All modules that the code of model and guide names, and theirs."""
        return nn.ModuleList(one for one in self._seen.values() if isinstance(one, nn.Module))

    def changed(self) -> str:
        """The name of something that is no longer what it was; empty if there is none."""
        for mapping, name, value in self._objects:
            now = mapping.get(name, _ABSENT)
            if now is not value and not _equal(now, value):
                return str(name)
        for mapping, name in self._empty:
            if mapping.get(name):
                return str(name)
        for number, (mapping, name, copied, value) in enumerate(self._contents):
            now = mapping.get(name)
            if _alike(now, copied):
                continue
            if _frozen(now) != value:
                return str(name)
            self._contents[number] = mapping, name, copy.copy(now), value
        return next((str(list(mapping)[-1]) for mapping, size in self._sizes if len(mapping) != size), "")

    def _visit(self, one: Any, *, inner: bool = False) -> None:
        """Note what an object reads; `inner` also for objects of libraries."""
        if id(one) in self._seen or isinstance(one, (*_PLAIN, Tensor, ModuleType, type)):
            return
        self._seen[id(one)] = one
        if isinstance(one, nn.Module):
            self._attributes(one, self._unread)
            self._sizes.append((one.__dict__, len(one.__dict__)))
        elif isinstance(one, FunctionType):
            if not _of_library(one.__module__):
                self._function(one)
        elif isinstance(one, MethodType):
            self._visit(one.__self__, inner=inner)
            self._visit(one.__func__)
        elif isinstance(one, functools.partial):
            for value in (one.func, *one.args, *one.keywords.values()):
                self._visit(value, inner=True)
        elif isinstance(one, _CONTAINERS):
            for value in list(one.values() if isinstance(one, dict) else one)[:_ITEMS]:
                self._visit(value)
        elif hasattr(one, "__dict__") and (inner or not _of_library(type(one).__module__)):
            self._attributes(one)

    def _attributes(self, one: Any, unread: Collection[str] = ()) -> None:
        """Note the attributes of an object and of its class."""
        caches = isinstance(one, Transform)  # which keep what they have computed, in attributes with an underscore
        for name, value in one.__dict__.items():
            if caches and name.startswith("_") and name not in _READ:
                continue
            if name not in unread and not (_replaceable(value) and _of_library(type(one).__module__)):
                self._note(one.__dict__, name, value)
        for kind in type(one).__mro__:
            if id(kind) not in self._seen and not _of_library(kind.__module__):
                self._seen[id(kind)] = kind
                for name, value in vars(kind).items():
                    if name == "__call__" or not name.startswith("__"):
                        self._note(vars(kind), name, value)
                        self._visit(getattr(value, "fget", None) or getattr(value, "__func__", None))

    def _function(self, function: FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            variable = _Variable(cell)
            self._note(variable, name, variable.get(name))
        for name in _names(function.__code__):
            if name in function.__globals__:
                self._note(function.__globals__, name, function.__globals__[name])
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(value)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._visit(wrapped)

    def _note(self, mapping: Mapping[str, Any] | _Variable, name: str, value: Any) -> None:
        if isinstance(value, _CONTAINERS) and not value:
            self._empty.append((mapping, name))
        elif isinstance(value, _CONTAINERS) and len(value) <= _ITEMS:
            self._contents.append((mapping, name, copy.copy(value), _frozen(value)))
        elif not isinstance(value, ModuleType):
            self._objects.append((mapping, name, value))
        self._visit(value)


def _of_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function's code, and that of the functions in it, mentions."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))


class _Variable:
    """A variable of an enclosing function, read as if it were in a dictionary."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Its value; `otherwise` if it has none."""
        try:
            return self._cell.cell_contents
        except ValueError:
            return otherwise


def _alike(one: Any, other: Any) -> bool:
    """Whether two containers have the same items, as far as that is seen at a glance."""
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # whatever the items' comparison raises, as of tensors
        return False


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and isinstance(one, _PLAIN) and (one == other or one != one)


def _frozen(value: Any) -> Any:
    """What tells whether a container has changed: numbers and strings by value, other objects by identity."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, dict):
        return dict, tuple((_frozen(name), _frozen(one)) for name, one in value.items())
    if isinstance(value, _CONTAINERS):
        return type(value), tuple(map(_frozen, value))
    return type(value) if _replaceable(value) else id(value)


def _replaceable(value: Any) -> bool:
    """Whether this is an object of a library that it may replace by an equal one at every call, as autoguides do plates."""
    kept = (*_PLAIN, *_CONTAINERS, Tensor, nn.Module, FunctionType, MethodType, functools.partial)
    return not isinstance(value, kept) and _of_library(type(value).__module__)
