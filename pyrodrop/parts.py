"""The parts of a fit that users choose: priors, likelihoods, models and guides; and descriptions of them for files.

A part of this package remembers the arguments that it was made with, as plain data for a file. From these data, `made`
creates an equal part:

    {"part": "pyrodrop.models.MLP", "arguments": {"widths": [1, 50, 1], "prior": {"part": "pyrodrop.priors.Gaussian", ...}}}

A guide's model is ``{"given": "model"}``. ``{"unknown": DESCRIPTION}`` stands for an object that a file cannot store, such
as a network or a function of the user.

Two descriptions are compared as strings by place, ``{"model": "pyrodrop.models.MLP", "model.activation": "relu", ...}``.
They have the classes and arguments of parts of this package and the layers of a network; functions and classes of users are
described by their names, not by their code.

An object is printed as a few lines, a `Card`, by the decorator `carded`, or as one line, `Described`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from torch import Tensor, nn
from torch.distributions import Distribution

from pyrodrop.checks import HasWeights, shown

_WIDE = 80  # columns of a terminal
T = TypeVar("T")


@dataclass(frozen=True)
class Card:
    """A title, and facts by name, one line each; those without a value are left out."""

    title: str
    facts: dict[str, str]

    def __str__(self) -> str:
        """The card in at most 80 columns where words allow it."""
        facts = {name: value for name, value in self.facts.items() if value}
        margin, lines = 4 + max(map(len, facts), default=0), [self.title]
        for name, value in facts.items():
            first = f"  {name}".ljust(margin)
            lines += textwrap.wrap(value, _WIDE, initial_indent=first, subsequent_indent=" " * margin)
        return "\n".join(lines)


class Described:
    """An object that is printed in one line, its `describe()`."""

    def describe(self) -> str:
        """A description in one line, for tables and saved files."""
        return type(self).__name__

    def __repr__(self) -> str:
        return self.describe()


def carded(cls: type[T]) -> type[T]:
    """Print a class as its ``card()``."""
    cls.__repr__ = lambda self: str(self.card())  # type: ignore[assignment,method-assign,attr-defined]
    return cls


def size(values: Any) -> str:
    """Shape and dtype of a tensor, ``[1000, 3] float32``, or of several, ``x_0 [20, 3] float32, x_1 [20, 5] int64``."""
    if isinstance(values, Tensor):
        return f"{list(values.shape)} {str(values.dtype).removeprefix('torch.')}"
    named = values.items() if isinstance(values, dict) else enumerate(values)
    return ", ".join(f"x_{name} {size(value)}" for name, value in named)


def number(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"


_KINDS: dict[str, type[Part]] = {}  # the classes of this package, by name
_SHOWN = 4  # differences in a message


class Part(Described):
    """A prior, likelihood, model or guide."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("pyrodrop."):
            _KINDS[_name(cls)] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        part = super().__new__(cls)
        if _is_known(cls):
            signature = inspect.signature(cls.__init__)
            try:
                (_, *arguments) = signature.bind(part, *args, **kwargs).arguments.items()
            except TypeError:  # ``__init__`` raises it, too; or it is a copy, which gets its state next
                return part
            part.__dict__["_made_with"] = {name: _plain(value, name) for name, value in arguments}
        return part

    def made_with(self) -> dict[str, Any]:
        """The class and its arguments, plain data for a file."""
        if "_made_with" not in self.__dict__:
            return {"unknown": f"it is {shown(self)}, of a class of your own"}
        return {"part": _name(type(self)), "arguments": self.__dict__["_made_with"]}


def made_with(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`Part.made_with` of each part by name; a part of another class is ``unknown``. ``now`` has its layers and priors."""
    return {
        name: (part.made_with() if isinstance(part, Part) else {"unknown": f"it is {_kind(part)} of your own"})
        | {"now": _layers(part) if isinstance(part, nn.Module) else {}}
        for name, part in parts.items()
    }


def in_words(data: Any, name: str) -> dict[str, str]:
    """The data of `made_with` as strings by place, with the defaults of omitted arguments.

    Seeds of initial values are not included.

    Example:
        >>> from pyrodrop import priors
        >>> in_words(priors.Gaussian(2.0).made_with(), "prior")
        {'prior': 'pyrodrop.priors.Gaussian', 'prior.scale': '2.0'}
    """
    if isinstance(data, dict):
        kind = data.get("part", data.get("class"))
        lines = {name: str(kind or data.get("unknown", data.get("given", "mapping")))}
        own = _KINDS.get(str(kind))
        arguments = {} if own is None else inspect.signature(own.__init__).parameters
        items = {key: _plain(each.default, key) for key, each in arguments.items() if each.default is not each.empty}
        for entries in (data.get(key) for key in ("arguments", "mapping", "now")):
            items |= entries if isinstance(entries, dict) else {}
        items.pop("seed", None)
    elif isinstance(data, list):
        lines, items = {name: f"list of {len(data)}"}, {str(number): value for number, value in enumerate(data)}
    else:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        return {name: str(float(data)) if number else str(data)}
    return lines | {
        place: text for key, value in items.items() for place, text in in_words(value, f"{name}.{key}").items()
    }


def made_of(part: Any, name: str) -> dict[str, str]:
    """A description of a model or guide: strings by place, such as ``NAME.prior.scale``."""
    return in_words(made_with({name: part})[name], name)


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """The differences between two descriptions as sentences: ``theta is 0 there and 0.1 here``."""
    return [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]


def refuse(lines: Sequence[str], what: str, remedy: str) -> None:
    """Raise a ValueError if there are differences; it shows a few.

    Args:
        lines: the `differences`.
        what: what the message says about the file, such as ``FILE is of another model``.
        remedy: what to do.
    """
    if lines:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise ValueError(f"{what}: {'; '.join(lines[:_SHOWN])}{more}. {remedy}")


def made(data: Any, model: Any = None) -> Any:
    """Create the part that `Part.made_with` describes.

    Args:
        model: the model of a guide.

    Raises:
        NotImplementedError: an argument is unknown; the message names it.
        Exception: the data are malformed.
    """
    match data:
        case {"unknown": words}:
            raise NotImplementedError(words)
        case {"given": "model"}:
            return model
        case {"part": name, "arguments": arguments}:
            return _KINDS[name](**{argument: made(value, model) for argument, value in arguments.items()})
        case {"class": name, "arguments": arguments}:
            return functools.partial(_KINDS[name], **{each: made(value, model) for each, value in arguments.items()})
        case {"mapping": mapping}:
            return {key: made(value, model) for key, value in mapping.items()}
        case list():
            return [made(value, model) for value in data]
    return data


def _layers(module: nn.Module) -> dict[str, str]:
    """The classes of modules of other packages, PyTorch's with their settings, and the priors of the sites."""
    layers = {
        name: f"{type(each).__name__}({each.extra_repr()})" if _top(each) == "torch" else type(each).__name__
        for name, each in module.named_modules()
        if _top(each) != "pyrodrop"
    }
    priors = getattr(module, "priors", None)
    described = priors if isinstance(priors, Mapping) else {}
    return layers | {f"prior of {site}": str(prior) for site, prior in described.items() if isinstance(prior, Part)}


def _top(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _kind(value: Any) -> str:
    """A short description of a user's object: a function by its name, a distribution by its parameters."""
    if isinstance(value, operator.itemgetter | operator.attrgetter):
        return repr(value)
    if isinstance(value, Distribution):
        parameters = {name: getattr(value, name) for name in value.arg_constraints}
        numbers = {n: p.item() if p.numel() == 1 else tuple(p.shape) for n, p in parameters.items()}
        return f"{type(value).__name__}({', '.join(f'{name}={number}' for name, number in numbers.items())})"
    return f"the function {value.__name__}" if hasattr(value, "__name__") else shown(value)


def _name(kind: type) -> str:
    """The name of a class without its file, such as ``pyrodrop.priors.Gaussian``."""
    return ".".join([*kind.__module__.split(".")[:2], kind.__qualname__])


def _is_known(kind: Any) -> bool:
    return isinstance(kind, type) and _KINDS.get(_name(kind)) is kind


def _plain(value: Any, where: str) -> Any:
    """An argument as plain data."""
    if issubclass(type(value), HasWeights):
        return {"given": "model"}
    if isinstance(value, Part):
        of_user = "_made_with" not in value.__dict__
        return {"unknown": f"{where} is {value.describe()} of your own"} if of_user else value.made_with()
    kind: Any = value.func if isinstance(value, functools.partial) else value
    if _is_known(kind) and not getattr(value, "args", ()):
        return {
            "class": _name(kind),
            "arguments": {name: _plain(each, name) for name, each in getattr(value, "keywords", {}).items()},
        }
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"mapping": {name: _plain(each, f"{where}[{name!r}]") for name, each in value.items()}}
    if type(value) in (list, tuple):
        return [_plain(each, where) for each in value]
    if getattr(value, "shape", None) == ():  # a number of NumPy or torch, which may have no value
        with suppress(RuntimeError):
            value = value.item()
    return value if isinstance(value, bool | int | float | str | None) else {"unknown": f"{where} is {_kind(value)}"}
