"""The public names: those of `__all__` of the modules that users import, each at the place where it is documented."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

# In the order of the reference. A name that several of them have is documented in the first.
MODULES = (
    "pyrodrop",
    "pyrodrop.data",
    "pyrodrop.recipes",
    "pyrodrop.sklearn",
    "pyrodrop.models",
    "pyrodrop.priors",
    "pyrodrop.likelihoods",
    "pyrodrop.guides",
    "pyrodrop.metrics",
    "pyrodrop.reparam",
    "pyrodrop.schedules",
    "pyrodrop.compression",
    "pyrodrop.sampling",
    "pyrodrop.distributions",
    "pyrodrop.divergences",
    "pyrodrop.zoo",
    "pyrodrop.analysis",
    "pyrodrop.analysis.acquire",
    "pyrodrop.analysis.plots",
    "pyrodrop.analysis.gp",
)


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module that are no modules: `__all__`, or what is defined in it."""
    own = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return [name for name in own if not isinstance(getattr(module, name), ModuleType)]


def places() -> dict[str, list[str]]:
    """The names that are documented in each module."""
    found: dict[str, list[str]] = {}
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        found[name] = [own for own in names_of(module) if id(getattr(module, own)) not in seen]
        seen |= {id(getattr(module, own)) for own in found[name]}
    return found


def elsewhere() -> dict[str, str]:
    """Other public paths of what is documented once, such as ``pyrodrop.sampling.sample``, and where that is."""
    where = {id(value(module, name)): f"{module}.{name}" for module, names in places().items() for name in names}
    return {
        f"{module}.{name}": where[id(value(module, name))]
        for module, names in places().items()
        for name in names_of(importlib.import_module(module))
        if name not in names
    }


def submodules(module: str) -> list[str]:
    """Modules in `__all__` of a module that have no page of their own."""
    own = importlib.import_module(module)
    found = [getattr(own, name) for name in getattr(own, "__all__", ())]
    return [part.__name__ for part in found if isinstance(part, ModuleType) and part.__name__ not in MODULES]


def value(module: str, name: str) -> Any:
    """What a public name stands for."""
    return getattr(importlib.import_module(module), name)
