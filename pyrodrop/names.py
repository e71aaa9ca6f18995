"""Check names that users type, and resolve settings by parameter name.

A setting is one value for all parameters, or a mapping from shell patterns to values, of which the first match applies:
``{"layers.0.*": 0.0, "*": 0.1}``.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar, get_args

T = TypeVar("T")
_NEAR = 3  # names that a message suggests where they are too many to list


def did_you_mean(name: Any, names: Iterable[str], least: float = 0.6) -> str:
    """A hint for the end of a message, ``; did you mean 'relu'?``; empty if no name is as similar as `least`."""
    near = difflib.get_close_matches(name, list(names), 1, least) if isinstance(name, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def public(module: str, names: Sequence[str], places: Mapping[str, str] = MappingProxyType({})) -> None:
    """Have `dir` show these names of a module alone, and Python's hints for other names suggest them.

    Args:
        places: modules of names that are imported when they are first used.
    """

    def attribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        vars(sys.modules[module])[name] = value = getattr(import_module(places[name]), name)
        return value

    vars(sys.modules[module]).update(__getattr__=attribute, __dir__=lambda: sorted(names))


def known(name: str, names: Collection[str], what: str, listed: str = "") -> str:
    """Return `name` if it is one of `names`.

    Args:
        name: the name that was passed.
        names: the allowed names.
        what: the kind of the names, for the message, such as ``activation``.
        listed: where they are all listed, if they are too many for a message.

    Raises:
        ValueError: `name` is none of `names`; the message lists them, or with `listed` the most similar ones, and suggests
            the most similar one.
    """
    if isinstance(name, str) and name in names:
        return name
    if listed:
        longer = [each for each in names if each.startswith(f"{name}/")][:_NEAR]
        near = longer or difflib.get_close_matches(str(name), names, _NEAR, 0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"no {what} is called {name!r}; {hint}there are {len(names)}, see {listed}")
    raise ValueError(f"no {what} is called {name!r}; there are {', '.join(names)}{did_you_mean(name, names, 0.0)}")


def some(values: Sequence[T] | None, usual: Iterable[T], name: str) -> list[T]:
    """The values of an argument, or the usual ones if it is None; a ValueError if it is empty."""
    if values is not None and not values:
        raise ValueError(f"{name} needs at least one value; got none")
    return list(usual if values is None else values)


def one_of(value: T, choices: Any, name: str) -> T:
    """The value of an argument, if it is one of `choices`, a `Literal`; otherwise a ValueError that lists them."""
    allowed = get_args(choices)
    if isinstance(value, str | int | None) and value in allowed:
        return value
    *others, last = map(repr, allowed)
    hint = did_you_mean(value, [each for each in allowed if isinstance(each, str)])
    raise ValueError(f"{name} must be {', '.join(others)} or {last}; got {value!r}{hint}")


def by_name(setting: T | Mapping[str, T], names: Iterable[str], what: str) -> dict[str, T]:
    """Resolve a setting for each of `names`.

    Args:
        setting: one value for all names, or a mapping from shell patterns to values, of which the first match applies.

    Raises:
        ValueError: a name matches no pattern, or a pattern matches no name.
        TypeError: a pattern is no str.
    """
    names = list(names)
    if not isinstance(setting, Mapping):
        return dict.fromkeys(names, setting)
    strange = [p for p in setting if not isinstance(p, str)]
    if strange:
        raise TypeError(f"{what}: the keys must be patterns of parameter names, which are str; got {strange[0]!r}")
    unused = [p for p in setting if not any(fnmatchcase(n, p) for n in names)]
    if unused:
        raise ValueError(f"{what}: no parameter is called {unused[0]!r}; there are {', '.join(names)}")
    chosen: dict[str, T] = {}
    for name in names:
        fits = [p for p in setting if fnmatchcase(name, p)]
        if not fits:
            raise ValueError(
                f"{what} must have a value for every parameter, but no pattern fits {name!r}; got "
                f"{', '.join(map(repr, setting)) or 'an empty mapping'}"
            )
        chosen[name] = setting[fits[0]]
    return chosen
