"""What a model or a guide is made of, in words, so that a file can say what differs from what it was written for.

    {"model.network": "mine.Net", "model.network.activation": "torch.relu", "model.theta": "0.1", ...}

Listed are the classes of all modules, the names, shapes and dtypes of their tensors, and everything that a file of their
tensors does not restore: numbers, words, priors, activations. A function is known by its name and, unless it is part of a
library, by its bytecode and constants; bytecode is compared between runs of the same version of Python only.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import logging
import operator
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.distributions import Distribution
from torch.nn.parameter import is_lazy

from pyrodrop.names import known
from pyrodrop.scaling import Standardize

_log = logging.getLogger("pyrodrop")

_LIBRARIES = {"torch", "pyro", "pyrodrop", "builtins", "numpy"}  # also where they are not installed as packages
_DEPTH = 8
_SHOWN = 4  # differences in a message
_LONG = 200  # characters of a value that are shown in full
_CODE = f" (code, Python {sys.version_info[0]}.{sys.version_info[1]})"
_FOUND_OUT = {
    "training",
    "changes_itself",
    "columns",
    "from_data",
}  # attributes of a module that are no part of what it is
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, types.NoneType)


def made_of(part: Any, name: str) -> dict[str, str]:
    """What a model, a guide or any other object is made of: words by place, whose names start with `name`."""
    return dict(_Walk().entries(name, part, 0))


def values_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The values of tensors in words: a number, or shape and digest."""
    return {name: _tensor(value) for name, value in tensors.items()}


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What differs, as sentences: ``theta is 0 there and 0.1 here``."""
    there = {name: _public(value) for name, value in there.items()}  # files of older versions have the whole name
    codes = {name for name in {*here, *there} if re.search(r" \(code, Python [\d.]+\)$", name)}
    if any(name.endswith(_CODE) for name in there):  # otherwise bytecode of another version
        codes = set()
    return [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in [*here, *(name for name in there if name not in here)]
        if there.get(name) != here.get(name) and name not in codes
    ]


def check_made_of(there: Any, parts: Mapping[str, Any], file: str | Path, allow: Collection[str] = ()) -> None:
    """Check that model and guide are made of what a file says.

    Args:
        there: what the file says, `made_of` of every part by name; None in files of older versions, of which a warning is
            logged.

    Raises:
        ValueError: they differ, or the file says something else; or `allow` has another name.
    """
    for name in allow:
        known(name, parts, "part of the file, in allow,")
    if there is None:
        _log.warning(
            "%s was written by an older version of pyrodrop, which did not record what the %s was made of: only names, "
            "shapes and dtypes were compared", file, " and the ".join(parts),
        )  # fmt: skip
        return
    if not isinstance(there, Mapping) or not all(is_words(there.get(name)) for name in parts):
        raise ValueError(f"{file} is damaged: it does not say what the {' and the '.join(parts)} was made of")
    compared = {
        name: differences(there[name], made_of(part, name)) for name, part in parts.items() if name not in allow
    }
    refuse(compared, f"{file} is of another {' or '.join(parts)}", "To read it all the same, pass allow={}")


def refuse(compared: Mapping[str, list[str]], words: str, remedy: str) -> None:
    """Raise a ValueError if there are differences; it shows a few.

    Args:
        compared: the `differences` of every part, by name.
        words: what is of something else.
        remedy: what to do, with {} for the names of the parts that differ.
    """
    lines = [line for differing in compared.values() for line in differing]
    if lines:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        names = tuple(name for name, differing in compared.items() if differing)
        raise ValueError(f"{words}: {'; '.join(lines[:_SHOWN])}{more}. {remedy.format(names)}")


def is_words(value: Any) -> bool:
    """Whether this can be a result of `made_of` that was read from a file."""
    return isinstance(value, Mapping) and all(isinstance(word, str) for word in value.values())


def is_settings(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this can be the settings of a fit or of draws that were read from a file."""
    if not isinstance(value, dict):
        return False
    rows, power = value.get("noise_by_row") or [], value.get("likelihood_power", 1.0)
    return (
        isinstance(rows, list)
        and all(isinstance(name, str) for name in rows)
        and isinstance(power, int | float)
        and isinstance(value.get("data_fingerprint", ""), str | None)
    )


class _Walk:
    """Lists what an object is made of; an object that it meets again is not listed again."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.kept: list[Any] = []  # so that no two objects have the same id

    def entries(self, name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
        if isinstance(value, _PLAIN):
            yield name, _short(repr(value))
            return
        if isinstance(value, np.ndarray):
            yield name, f"{value.dtype} {list(value.shape)} {_hash(value.tobytes())}"
            return
        if isinstance(value, Tensor):
            yield name, _tensor(value)
            return
        if isinstance(value, list | tuple | set | frozenset | Mapping) and not value:
            yield name, type(value).__name__
            return
        if isinstance(value, type):
            yield name, _name(value)
            return
        if id(value) in self.seen:
            yield name, f"the same as {self.seen[id(value)]}"
            return
        if not isinstance(value, types.BuiltinFunctionType):
            self.seen[id(value)] = name
            self.kept.append(value)
        if depth > _DEPTH:
            yield name, _name(type(value))
        elif isinstance(value, nn.Module):
            yield from self._module(name, value, depth)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from self.entries(f"{name}[{key!r}]" if isinstance(key, _PLAIN) else name, item, depth + 1)
        elif isinstance(value, set | frozenset):
            yield name, _short(" ".join(sorted(map(repr, value))))
        elif isinstance(value, list | tuple):
            if all(isinstance(item, _PLAIN) for item in value):
                yield name, _short(repr(value))
                return
            for number, item in enumerate(value):
                yield from self.entries(f"{name}[{number}]", item, depth + 1)
        elif isinstance(value, functools.partial):
            yield from self.entries(name, value.func, depth + 1)
            yield from self.entries(f"{name}.args", value.args, depth + 1)
            yield from self.entries(f"{name}.keywords", value.keywords, depth + 1)
        elif isinstance(value, operator.itemgetter | operator.attrgetter):
            yield name, repr(value)
        elif isinstance(value, types.MethodType):
            yield from self.entries(name, value.__func__, depth + 1)
            yield from self.entries(f"{name}.__self__", value.__self__, depth + 1)
        elif isinstance(value, types.FunctionType):
            yield from self._function(name, value, depth)
        elif inspect.isroutine(value):
            yield name, _name(value)
        else:
            yield from self._object(name, value, depth)

    def _module(self, name: str, module: nn.Module, depth: int) -> Iterator[tuple[str, str]]:
        yield from self._class(name, type(module), depth)
        if isinstance(module, Standardize):  # of the data, whatever they are; its values are in the state of the module
            return
        if isinstance(module, fx.GraphModule):
            yield f"{name}.code", _hash(module.code.encode())
        hidden = any(_top(cls) == "pyrodrop" for cls in type(module).__mro__) or _library(type(module))
        internal = nn.Module().__dict__.keys() | _FOUND_OUT
        for key, value in module.__dict__.items():
            if key not in internal and not key.startswith("_pyro") and not (hidden and key.startswith("_")):
                yield from self.entries(f"{name}.{key}", value, depth + 1)
        tensors = {
            key: None if tensor is None else tensor.detach().flatten()[0]  # of each column of y, as many as data have
            if key in getattr(module, "from_data", ()) else tensor
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]
        }  # fmt: skip
        for key, tensor in tensors.items():
            stored = key not in module._non_persistent_buffers_set
            yield f"{name}.{key}", "None" if tensor is None else _form(tensor) if stored else _tensor(tensor)
        for key, child in module._modules.items():
            yield from self.entries(f"{name}.{key}", child, depth=0)

    def _object(self, name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
        """A prior, a schedule, a distribution or an object of a user."""
        yield from self._class(name, type(value), depth)
        if isinstance(value, Distribution):
            kind = type(
                value
            )  # a property is stored in another distribution, as of Beta; lazy ones are of other parameters
            entries = {
                key: getattr(value, key)
                for key in value.arg_constraints
                if key in value.__dict__ or type(getattr(kind, key, None)) is property
            }
        elif _library(type(value)) and _top(type(value)) != "pyrodrop":
            return
        else:
            entries = dict(getattr(value, "__dict__", {}))
            entries |= {key: getattr(value, key, None) for key in getattr(type(value), "__slots__", ())}
            if _top(type(value)) == "pyrodrop":
                entries = {key: item for key, item in entries.items() if not key.startswith("_")}
            if callable(getattr(value, "numbers", None)):  # of a prior
                entries |= value.numbers()
        for key, item in entries.items():
            yield from self.entries(f"{name}.{key}", item, depth + 1)

    def _class(self, name: str, cls: type, depth: int) -> Iterator[tuple[str, str]]:
        """The name of a class and, of a user's, the code of its methods."""
        yield name, _name(cls)
        for base in cls.__mro__:
            if not _library(base) and id(base) not in self.seen:
                self.seen[id(base)] = name
                self.kept.append(base)
                code = [_digest(f) for _, f in sorted(vars(base).items()) for f in _functions(f)]
                yield f"{name} {base.__name__}{_CODE}", _hash("".join(code).encode())

    def _function(self, name: str, function: types.FunctionType, depth: int) -> Iterator[tuple[str, str]]:
        yield name, _name(function)
        if _library(function):
            return
        yield f"{name}{_CODE}", _digest(function)
        more: dict[str, Any] = {}
        for number, value in enumerate(function.__defaults__ or ()):
            more[f"default {number}"] = value
        more |= function.__kwdefaults__ or {}
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                more[key] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        stored = {step.argval for step in dis.get_instructions(function.__code__) if step.opname == "STORE_GLOBAL"}
        for key in function.__code__.co_names:
            if key in function.__globals__ and key not in stored:
                value = function.__globals__[key]
                neighbour = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
                if neighbour or isinstance(value, _PLAIN):
                    more[key] = value
        for key, value in more.items():
            yield from self.entries(f"{name}.{key}", value, depth + 1)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The functions of an entry of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        yield from (f for f in (value.fget, value.fset) if isinstance(f, types.FunctionType))
    elif isinstance(value, types.FunctionType):
        yield value


def _digest(function: types.FunctionType) -> str:
    """A digest of the bytecode of a function, with its constants and names."""
    digest = hashlib.blake2b(digest_size=8)

    def add(code: types.CodeType) -> None:
        digest.update(code.co_code)
        digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                add(constant)
            elif isinstance(constant, frozenset):
                digest.update(repr(sorted(map(repr, constant))).encode())
            else:
                digest.update(repr(constant).encode())

    add(function.__code__)
    return digest.hexdigest()


def _name(value: Callable[..., Any]) -> str:
    """The name of a class or function; of a library with its module, which may be ``__main__`` for a user's."""
    if not _library(value):
        return str(value.__qualname__).rpartition("<locals>.")[2]
    module = getattr(value, "__module__", None) or "torch"  # functions of torch in C have none
    return _public(f"{module}.{getattr(value, '__qualname__', type(value).__name__)}")


def _public(name: str) -> str:
    """The name of a class of pyrodrop without its file, which differs between versions: ``pyrodrop.priors.Gaussian``."""
    return re.sub(r"^(pyrodrop\.\w+\.)(?:[a-z_0-9]+\.)+(?=_?[A-Z])", r"\1", name)


def _top(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "builtins").partition(".")[0]


def _library(value: Any) -> bool:
    """Whether a class or function belongs to an installed library, whose code may change without being another one."""
    top = _top(value)
    if top == "__main__":
        return False
    if top in _LIBRARIES or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _form(value: Tensor) -> str:
    """Dtype and shape of a tensor."""
    if is_lazy(value):
        return "uninitialized"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _tensor(value: Tensor) -> str:
    """A number, or dtype, shape and digest of a tensor."""
    if value.numel() == 1 and value.dim() == 0:
        return repr(value.item())
    try:
        flat = value.detach().cpu().contiguous().reshape(-1)
        return f"{_form(value)} {_hash(flat.view(torch.uint8).numpy().tobytes())}"
    except (RuntimeError, TypeError):  # a tensor without memory of its own, such as a sparse one
        return _form(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}... {_hash(text.encode())}"


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
