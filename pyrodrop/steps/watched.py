"""Changes of what a Pyro program reads beside its arguments and the values of tensors: numbers, flags and objects.

They are in attributes of objects, classes and imported modules, in containers, closures and global names. A recording
reads them once, so every step checks whether they have changed. Only what the code of model and guide names is found: not
what a function of another library reads, or a number in an array. `pyrodrop.module_flags` compares modules of networks.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable
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
_FLAGS = set(nn.Module().__dict__)  # attributes of a module that `pyrodrop.module_flags` compares
_PACKAGES = str(Path(torch.__file__).parents[1])
_ABSENT = object()

Read = Callable[[], Any]


class Watched:
    """What some callables read, as it was when this object was made."""

    def __init__(self, *programs: Any) -> None:
        self._objects: list[tuple[Read, str, Any]] = []  # a function that reads an object, its name, the object
        self._contents: list[tuple[Read, str, Any, Any]] = []  # of a container: also a copy, and it frozen
        self._attributes: list[tuple[dict[str, Any], int]] = []  # of objects, and their number
        self._imported: set[tuple[int, str]] = set()  # modules, and the names in them
        self._seen: dict[int, Any] = {}  # by id; it keeps the objects, so that no other gets the same id
        self._packages = {
            (getattr(program, "__module__", None) or type(program).__module__).partition(".")[0] for program in programs
        }
        for program in programs:
            self._visit(program, inner=True)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All modules that the code of model and guide names, and their submodules, by name."""
        named: dict[str, nn.Module] = {}
        for module in [value for value in self._seen.values() if isinstance(value, nn.Module)]:
            name = type(module).__name__
            named[name if name not in named else f"{name} ({len(named)})"] = module
        return named

    def changed(self) -> str:
        """The name of something that has changed; empty if nothing has."""
        for read, name, value in self._objects:
            now = read()
            if now is not value and not _equal(now, value):
                return name
        for number, (read, name, copied, value) in enumerate(self._contents):
            now = read()
            if _alike(now, copied):
                continue
            if _frozen(now) != value:
                return name
            self._contents[number] = read, name, _copied(now), value
        return next((list(attributes)[-1] for attributes, size in self._attributes if len(attributes) != size), "")

    def _visit(self, value: Any, *, inner: bool = False) -> None:
        """Note what an object reads; `inner` also for objects of libraries."""
        if isinstance(value, type):
            self._class(value)
            return
        if id(value) in self._seen or isinstance(value, (*_PLAIN, Tensor, ModuleType)):
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            self._object(value)
            for module in value._modules.values():
                self._visit(module)
        elif isinstance(value, FunctionType):
            if not self._skips(value.__module__):
                self._function(value)
        elif isinstance(value, MethodType):
            self._visit(value.__self__, inner=inner)
            self._visit(value.__func__)
        elif isinstance(value, functools.partial):
            for piece in (value.func, *value.args, *value.keywords.values()):
                self._visit(piece, inner=True)
        elif isinstance(value, _CONTAINERS):
            for item in list(value.values() if isinstance(value, dict) else value)[:_ITEMS]:
                self._visit(item)
        elif inner or not _of_library(type(value).__module__):
            self._object(value)

    def _object(self, value: Any) -> None:
        """Note the attributes of an object and of its class."""
        attributes = getattr(value, "__dict__", {})
        caches = isinstance(value, Transform)  # which keep what they have computed, in attributes with an underscore
        if not caches:
            self._attributes.append((attributes, len(attributes)))
        for name, attribute in attributes.items():
            if (caches and name.startswith("_")) or (isinstance(value, nn.Module) and name in _FLAGS):
                continue
            if not (_replaceable(attribute) and _of_library(type(value).__module__)):
                self._note(functools.partial(attributes.get, name, _ABSENT), name)
        for kind in type(value).__mro__:
            if not _of_library(kind.__module__):
                slots = [name for name, slot in vars(kind).items() if isinstance(slot, MemberDescriptorType)]
                for name in slots:
                    self._note(functools.partial(getattr, value, name, _ABSENT), name)
        self._class(type(value))

    def _class(self, kind: type) -> None:
        """Note the attributes of a class and of those that it inherits from."""
        for base in kind.__mro__:
            if id(base) in self._seen or self._skips(base.__module__):
                continue
            self._seen[id(base)] = base
            for name, value in list(vars(base).items()):
                if name == "__call__" or not name.startswith("__"):
                    self._note(functools.partial(vars(base).get, name, _ABSENT), name)
                    self._visit(getattr(value, "fget", None) or getattr(value, "__func__", None))

    def _function(self, function: FunctionType) -> None:
        names = _names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._named(functools.partial(_contents, cell), name, names)
        for name in names & function.__globals__.keys():
            self._named(functools.partial(function.__globals__.get, name, _ABSENT), name, names)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._note(lambda value=value: value, f"a default of {function.__name__}")  # type: ignore[misc]
        self._visit(getattr(function, "__wrapped__", None))

    def _named(self, read: Read, name: str, names: AbstractSet[str]) -> None:
        """Note what code names; of an imported module, the attributes that the code names."""
        value = read()
        if not isinstance(value, ModuleType):
            self._note(read, name)
        elif not self._skips(value.__name__):
            for attribute in names & vars(value).keys():
                if (id(value), attribute) not in self._imported:
                    self._imported.add((id(value), attribute))
                    self._named(functools.partial(vars(value).get, attribute, _ABSENT), attribute, names)

    def _note(self, read: Read, name: str) -> None:
        value = read()
        if isinstance(value, _CONTAINERS) and len(value) <= _ITEMS:
            self._contents.append((read, name, _copied(value), _frozen(value)))
        elif not isinstance(value, ModuleType):
            self._objects.append((read, name, value))
        self._visit(value)

    def _skips(self, module: str | None) -> bool:
        """Whether the code of a module is not read: Python's, a library's or that of another installed package."""
        top = (module or "builtins").partition(".")[0]
        if top in _LIBRARIES or top in self._packages:
            return top in _LIBRARIES
        file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
        return top in sys.stdlib_module_names or file.startswith(_PACKAGES)


def _of_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function's code, and that of the functions in it, mentions."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _contents(cell: CellType) -> Any:
    """The value of a variable of an enclosing function."""
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _copied(value: Any) -> Any:
    """A copy of a container and of those in it, whose items are the same objects."""
    if isinstance(value, tuple) and not any(isinstance(item, _CONTAINERS) for item in value):
        return value
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, _CONTAINERS):
        plain = next(kind for kind in _CONTAINERS if isinstance(value, kind))
        return plain(map(_copied, value))
    return value


def _alike(first: Any, other: Any) -> bool:
    """Whether two containers are equal by ``==``; False if their items cannot be compared."""
    try:
        return isinstance(first, type(other)) and bool(first == other)
    except Exception:  # whatever the items' comparison raises, as of tensors
        return False


def _equal(first: Any, other: Any) -> bool:
    return type(first) is type(other) and isinstance(first, _PLAIN) and (first == other or first != first)


def _frozen(value: Any) -> Any:
    """A value that shows whether a container has changed: numbers and strings by value, other objects by identity."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, dict):
        return dict, tuple((_frozen(name), _frozen(item)) for name, item in value.items())
    if isinstance(value, _CONTAINERS):
        return type(value), tuple(map(_frozen, value))
    return type(value) if _replaceable(value) else id(value)


def _replaceable(value: Any) -> bool:
    """Whether this is an object that a library may replace by an equal one at every call, as autoguides replace plates."""
    kept = (*_PLAIN, *_CONTAINERS, Tensor, nn.Module, FunctionType, MethodType, functools.partial)
    return not isinstance(value, kept) and _of_library(type(value).__module__)
