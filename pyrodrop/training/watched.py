"""What a Pyro program reads beside its arguments and the values of tensors: numbers, flags and objects.

They are in attributes of objects, classes and imported modules, in containers, closures and global names. A recording
reads them once, so every step looks whether they are as they were. Only what the code of model and guide names is found: not
what a function of another library reads, or a number in an array. `pyrodrop.networks.flags` compares modules of networks.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform

_LIBRARIES = ("torch", "pyro", "pyrodrop", "numpy", "builtins", "functools", "math")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)  # that nothing changes in place
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_ITEMS = 100  # of a container; of a longer one only the object is compared
_FLAGS = set(nn.Module().__dict__)  # attributes of a module that `pyrodrop.networks.flags` compares
_PACKAGES = str(Path(torch.__file__).parents[1])
_ABSENT = object()


class Watched:
    """What some callables read, as it is now."""

    def __init__(self, *parts: Any) -> None:
        self._objects: list[tuple[Any, Any, Any]] = []  # a mapping, a name in it, the object
        self._contents: list[tuple[Any, Any, Any, Any]] = []  # and a copy of a container, and what it has
        self._empty: list[tuple[Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._imported: set[tuple[int, str]] = set()  # modules, and the names in them
        self._seen: dict[int, Any] = {}  # which keeps the objects, so that no other gets the same id
        self._own = {(getattr(part, "__module__", None) or type(part).__module__).partition(".")[0] for part in parts}
        for part in parts:
            self._visit(part, inner=True)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All modules that the code of model and guide names, and theirs, by name."""
        found: dict[str, nn.Module] = {}
        for module in [one for one in self._seen.values() if isinstance(one, nn.Module)]:
            name = type(module).__name__
            found[name if name not in found else f"{name} ({len(found)})"] = module
        return found

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
            self._contents[number] = mapping, name, _copied(now), value
        return next((str(list(mapping)[-1]) for mapping, size in self._sizes if len(mapping) != size), "")

    def _visit(self, one: Any, *, inner: bool = False) -> None:
        """Note what an object reads; `inner` also for objects of libraries."""
        if isinstance(one, type):
            self._class(one)
            return
        if id(one) in self._seen or isinstance(one, (*_PLAIN, Tensor, ModuleType)):
            return
        self._seen[id(one)] = one
        if isinstance(one, nn.Module):
            self._attributes(one)
            self._sizes.append((one.__dict__, len(one.__dict__)))
            for module in one._modules.values():
                self._visit(module)
        elif isinstance(one, FunctionType):
            if not self._skips(one.__module__):
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
        elif inner or not _of_library(type(one).__module__):
            self._attributes(one)

    def _attributes(self, one: Any) -> None:
        """Note the attributes of an object and of its class."""
        caches = isinstance(one, Transform)  # which keep what they have computed, in attributes with an underscore
        for name, value in getattr(one, "__dict__", {}).items():
            if (caches and name.startswith("_")) or (isinstance(one, nn.Module) and name in _FLAGS):
                continue
            if not (_replaceable(value) and _of_library(type(one).__module__)):
                self._note(one.__dict__, name, value)
        slots = _Slots(one)
        for name in slots.names():
            self._note(slots, name, slots.get(name))
        self._class(type(one))

    def _class(self, kind: type) -> None:
        """Note the attributes of a class and of those that it inherits from."""
        for one in kind.__mro__:
            if id(one) in self._seen or self._skips(one.__module__):
                continue
            self._seen[id(one)] = one
            for name, value in list(vars(one).items()):
                if name == "__call__" or not name.startswith("__"):
                    self._note(vars(one), name, value)
                    self._visit(getattr(value, "fget", None) or getattr(value, "__func__", None))

    def _function(self, function: FunctionType) -> None:
        names = _names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._named(_Variable(cell), name, names)
        for name in names & function.__globals__.keys():
            self._named(function.__globals__, name, names)
        defaults: dict[Any, Any] = {**dict(enumerate(function.__defaults__ or ())), **(function.__kwdefaults__ or {})}
        for name, value in defaults.items():
            self._note(defaults, name, value)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._visit(wrapped)

    def _named(self, mapping: Any, name: str, names: AbstractSet[str]) -> None:
        """Note what code names; of an imported module the attributes that the code names as well."""
        value = mapping.get(name)
        if not isinstance(value, ModuleType):
            self._note(mapping, name, value)
        elif not self._skips(value.__name__):
            for own in names & vars(value).keys():
                if (id(value), own) not in self._imported:
                    self._imported.add((id(value), own))
                    self._named(vars(value), own, names)

    def _note(self, mapping: Any, name: str, value: Any) -> None:
        if isinstance(value, _CONTAINERS) and not value:
            self._empty.append((mapping, name))
        elif isinstance(value, _CONTAINERS) and len(value) <= _ITEMS:
            self._contents.append((mapping, name, _copied(value), _frozen(value)))
        elif not isinstance(value, ModuleType):
            self._objects.append((mapping, name, value))
        self._visit(value)

    def _skips(self, module: str | None) -> bool:
        """Whether the code of a module is not read: Python's, a library's or that of another installed package."""
        top = (module or "builtins").partition(".")[0]
        if top in _LIBRARIES or top in self._own:
            return top in _LIBRARIES
        file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
        return top in sys.stdlib_module_names or file.startswith(_PACKAGES)


def _of_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function's code, and that of the functions in it, mentions."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))


class _Slots:
    """The slots of an object, read as if they were in a dictionary."""

    def __init__(self, one: Any) -> None:
        self._one = one

    def names(self) -> list[str]:
        """The names of the slots that its classes define."""
        kinds = [kind for kind in type(self._one).__mro__ if not _of_library(kind.__module__)]
        return [name for kind in kinds for name, value in vars(kind).items() if isinstance(value, MemberDescriptorType)]

    def get(self, name: str, otherwise: Any = None) -> Any:
        """The value of a slot; `otherwise` if it has none."""
        return getattr(self._one, name, otherwise)


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


def _copied(value: Any) -> Any:
    """A copy of a container and of those in it, whose items are the same objects."""
    if isinstance(value, tuple) and not any(isinstance(one, _CONTAINERS) for one in value):
        return value
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    if isinstance(value, _CONTAINERS):
        plain = next(kind for kind in _CONTAINERS if isinstance(value, kind))
        return plain(map(_copied, value))
    return value


def _alike(one: Any, other: Any) -> bool:
    """Whether two containers have the same items, as far as that is seen at a glance."""
    try:
        return isinstance(one, type(other)) and bool(one == other)
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
