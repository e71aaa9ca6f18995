"""Detect changes of modules that make a recorded training step invalid.

These are other objects as parameters, buffers or submodules, and changes of `requires_grad`, hooks, and the training mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from torch import Tensor, nn

TABLES = ("_parameters", "_buffers", "_modules")
HOOKS = tuple(
    name for name in nn.Module().__dict__ if name.endswith("_hooks") and ("forward" in name or "backward" in name)
)
_STATE = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")  # of a parameter
_MODE = itemgetter("training")


class Flags:
    """The flags of some modules and parameters as they are now.

    Args:
        modules: modules by name, every submodule as an entry of its own.
        parameters: further parameters by name, such as those of Pyro's store.
    """

    def __init__(self, modules: Mapping[str, nn.Module], parameters: Mapping[str, Tensor] | None = None) -> None:
        self._modules = dict(modules)
        self._tables: list[dict[str, Any]] = [getattr(module, table) for module in modules.values() for table in TABLES]
        self._sizes = list(map(len, self._tables))
        self._filled = [table for table in self._tables if table]
        self._values = [value for table in self._tables for value in table.values()]  # which also keeps their ids
        self._ids = self._ids_now()
        of_modules = {_name(at, name): p for at, module in modules.items() for name, p in module._parameters.items()}
        named = {id(p): (name, p) for name, p in {**of_modules, **(parameters or {})}.items() if p is not None}
        self.parameters: dict[str, Tensor] = dict(named.values())
        self._states = [_copied(state) for state in map(_STATE, self.parameters.values())]
        self._hooks = [getattr(module, hooks) for module in modules.values() for hooks in HOOKS]
        self._hooked = list(map(tuple, self._hooks)) if any(self._hooks) else None
        self._attributes = [module.__dict__ for module in modules.values()]
        self._modes = list(map(_MODE, self._attributes))

    def changed(self) -> str:
        """A description of the first change that is found, for a message; empty if nothing has changed."""
        if list(map(len, self._tables)) != self._sizes or self._ids_now() != self._ids:
            return self._replaced()
        if list(map(_STATE, self.parameters.values())) != self._states:
            pairs = zip(self.parameters.items(), self._states, strict=True)
            name, before, now = next((name, old, new) for (name, p), old in pairs if (new := _STATE(p)) != old)
            return f"requires_grad of {name}" if before[0] != now[0] else "a hook of a parameter"
        if any(self._hooks) if self._hooked is None else list(map(tuple, self._hooks)) != self._hooked:
            return "a hook of a module"
        if list(map(_MODE, self._attributes)) != self._modes:
            modes = zip(self._modules.items(), self._modes, strict=True)
            name = next(name for (name, module), mode in modes if module.training != mode)
            return f"training or evaluation mode of {name}"
        return ""

    def _ids_now(self) -> list[int]:
        return list(map(id, chain.from_iterable(map(dict.values, self._filled))))

    def _replaced(self) -> str:
        """The name of the first parameter, buffer or submodule that is another object."""
        before = iter(self._values)
        for at, module in self._modules.items():
            for table in TABLES:
                for name, value in getattr(module, table).items():
                    if value is not next(before, None):
                        return _name(at, name)
        return "a parameter, buffer or submodule"


def has_hooks(parameter: Tensor) -> bool:
    """Whether a parameter has hooks, which a step calls with its gradient."""
    return any(_STATE(parameter)[1:])


def _copied(state: tuple[bool, Any, Any]) -> tuple[Any, ...]:
    return (state[0], *(None if hooks is None else dict(hooks) for hooks in state[1:]))


def _name(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter
