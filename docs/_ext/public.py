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
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return [name for name in names if not isinstance(getattr(module, name), ModuleType)]


def places() -> dict[str, list[str]]:
    """The names that are documented in each module."""
    by_module: dict[str, list[str]] = {}
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        by_module[name] = [
            public_name for public_name in names_of(module) if id(getattr(module, public_name)) not in seen
        ]
        seen |= {id(getattr(module, public_name)) for public_name in by_module[name]}
    return by_module


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
    package = importlib.import_module(module)
    members = [getattr(package, name) for name in getattr(package, "__all__", ())]
    return [member.__name__ for member in members if isinstance(member, ModuleType) and member.__name__ not in MODULES]


def value(module: str, name: str) -> Any:
    """What a public name stands for."""
    return getattr(importlib.import_module(module), name)
