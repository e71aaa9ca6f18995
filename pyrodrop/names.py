"""Check names that users type, and resolve settings by parameter name.

A setting is one value for all parameters, or a mapping from shell patterns to values, of which the first match applies:
``{"layers.0.*": 0.0, "*": 0.1}``.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

P = ParamSpec("P")
Self = TypeVar("Self")
T = TypeVar("T")
_NEAR = 3  # names that a message suggests where they are too many to list


def known(name: str, names: Collection[str], what: str, listed: str = "") -> str:
    """Return `name` if it is one of `names`.

    Args:
        name: what was typed.
        names: what it may be.
        what: what they are the names of, for the message.
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
    near = difflib.get_close_matches(name, names, 1, 0.0) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no {what} is called {name!r}; there are {', '.join(names)}{hint}")


def some(given: Sequence[T] | None, usual: Iterable[T], name: str) -> list[T]:
    """The values of an argument, or the usual ones if it is None; a ValueError if it is empty."""
    if given is not None and not given:
        raise ValueError(f"{name} needs at least one value; got none")
    return list(usual if given is None else given)


def one_of(value: T, choices: Any, name: str) -> T:
    """The value of an argument, if it is one of `choices`, a `Literal`; otherwise a ValueError that lists them."""
    allowed = get_args(choices)
    if isinstance(value, str | int | None) and value in allowed:
        return value
    *others, last = map(repr, allowed)
    near = difflib.get_close_matches(value, allowed, 1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
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


def explains(
    **reasons: str,
) -> Callable[[Callable[Concatenate[Self, P], None]], Callable[Concatenate[Self, P], None]]:
    """Decorate an ``__init__``: an argument that it does not have is a TypeError with the class and the reason, if it is one
    of `reasons`, and otherwise the nearest name."""

    def decorated(init: Callable[Concatenate[Self, P], None]) -> Callable[Concatenate[Self, P], None]:
        names = list(inspect.signature(init).parameters)[1:]

        @functools.wraps(init)
        def checked(self: Self, *args: P.args, **kwargs: P.kwargs) -> None:
            for name in kwargs:
                if name not in names:
                    near = difflib.get_close_matches(name, names, 1)
                    hint = reasons.get(name, f"did you mean {near[0]!r}?" if near else "")
                    raise TypeError(f"{type(self).__name__} has no argument {name!r}{'; ' if hint else ''}{hint}")
            init(self, *args, **kwargs)

        return checked

    return decorated
