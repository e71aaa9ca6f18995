"""What is passed to functions: checks of arguments and names, constraints in signatures, inputs x, and protocols.

An error is one line: the argument, what is allowed and what was passed. Each check returns the value as Python's own type.
Scalars of NumPy and torch are accepted as numbers; ``True`` and ``False`` are not, and a number is not accepted as a flag.

Constraints of arguments stand in the signatures of public functions:

    @checked
    def sample(model: NetworkModel, *, chains: Annotated[int, Count("the number of chains")] = 64, engine: Name = "auto"):

`checked` applies them before the function runs and passes Python's own types on. ``X | None`` allows None, and a `Literal`
is a constraint by itself. `help` shows the types; the reference on the website also says which values are allowed.

A setting is one value for all parameters, or a mapping from shell patterns to values, of which the first match applies:
``{"layers.0.*": 0.0, "*": 0.1}``.

Inputs x of a network are a tensor, or a tuple or mapping of tensors whose first axis indexes the examples:

    x                                  network(x)
    (ids, mask)                        network(ids, mask)
    {"input_ids": ids, "mask": mask}   network(input_ids=ids, mask=mask)

Protocols of models and guides that can do more than be called as a Pyro program:

    model    NetworkModel       the class of `pyrodrop.models`, which training and prediction support in full
             HasWeights         lists its weights with their initial values, as guides of `pyrodrop.guides` need
    guide    Guide, Ensemble    the classes of `pyrodrop.guides`
             HasPosterior       has a distribution of every weight
             HasDraws           samples all weights at once
             HasRows            computes its posterior from all rows of the data
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import math
import numbers
import operator
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from types import MappingProxyType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    runtime_checkable,
)

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyro.distributions import TorchDistribution

_COMPARISONS: Mapping[str, Any] = {
    "least": operator.ge,
    "most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}
_REAL = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
})  # fmt: skip
MOST = 2**63 - 1  # the largest number of 64 bits, which torch takes for sizes and seeds


def count(value: Any, name: str, what: str, *, least: int = 1, most: int = MOST) -> int:
    """A whole number from `least` to `most`.

    Args:
        what: what the argument is, such as ``the number of gradient steps``.

    Raises:
        TypeError: it is not an integer; 3.0 is not accepted.
        ValueError: it is out of range.
    """
    allowed = whole(least, most)
    if _is_number(value) and not value.is_floating_point():
        value = value.item()  # a bool stays one
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        meant = isinstance(value, float) and value.is_integer() and least <= value <= most
        hint = f": write {int(value)}" if meant else ""
        raise TypeError(f"{name} is {what} and must be {allowed}; got {shown(value)}{hint}")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} is {what} and must be {allowed}; got {number}")
    return number


def seed(value: Any) -> int:
    """The seed of random numbers: a whole number of at least 0. For its errors see `count`."""
    return count(value, "seed", "the seed of the random numbers", least=0)


def real(value: Any, name: str, what: str, **bounds: float) -> float:
    """A finite number within bounds.

    Args:
        value: the argument that was passed.
        name: of the argument.
        what: what the argument is, such as ``the precision of the noise``.
        bounds: `least` and `most`, which are allowed themselves, `above` and `below`, which are not.

    Raises:
        TypeError: it is not a real number.
        ValueError: it is out of bounds, NaN or infinite.
    """
    allowed = bounded(**bounds)
    if _is_number(value):
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {what} and must be {allowed}; got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        number = math.inf
    if not (math.isfinite(number) and all(_COMPARISONS[kind](number, bound) for kind, bound in bounds.items())):
        raise ValueError(f"{name} is {what} and must be {allowed}; got {number:g}")
    return number


def scale(value: Any, name: str, what: str) -> float:
    """A positive number whose square float32 holds: from 1e-18 to 1e18. For its errors see `real`."""
    return real(value, name, what, least=1e-18, most=1e18)


def variance(value: Any, name: str, what: str) -> float:
    """A variance or a precision, the square of a `scale`: from 1e-36 to 1e36. For its errors see `real`."""
    return real(value, name, what, least=1e-36, most=1e36)


def flag(value: Any, name: str, what: str) -> bool:
    """True or False.

    Raises:
        TypeError: it is something else; 0, 1, None and strings are not accepted.
    """
    if type(value).__name__ in ("bool", "bool_") and not isinstance(value, Tensor):
        return bool(value)
    raise TypeError(f"{name} says {what} and must be True or False; got {shown(value)}")


def counts(value: Any, name: str, what: str, *, least: int = 1) -> tuple[int, ...]:
    """A sequence of whole numbers of at least `least`. For its errors see `count`."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(f"{name} are {what} and must be a list of whole numbers; got {shown(value)}")
    return tuple(count(number, name, f"one of {what}", least=least) for number in value)


def instance(value: Any, kinds: Any, name: str, what: str) -> Any:
    """An object of one of the classes `kinds`; otherwise a TypeError, which says `what` it must be."""
    if not isinstance(value, kinds):
        got = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
        of_kind = isinstance(value, type) and issubclass(value, kinds)
        hint = f": call it, {value.__name__}(...)" if of_kind else ""
        raise TypeError(f"{name} must be {what}; got {got}{hint}")
    return value


def tensor(
    value: Any,
    name: str,
    what: str,
    *,
    finite: bool = True,
    bools: bool = False,
    floating: bool = False,
    **bounds: float,
) -> Tensor:
    """A dense tensor of real numbers that is not empty.

    Args:
        what: what the argument is, such as ``the predicted means``.
        finite, bools, floating: whether to refuse NaN and infinite values, to accept bools, and to refuse integers.
        bounds: of the values, see `real`.

    Raises:
        TypeError: it is no tensor, or is complex, sparse, on the meta device, or of a dtype that is not accepted.
        ValueError: it is empty, a value is out of bounds, or, unless `finite` is False, a value is NaN or infinite.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, {what}; got {shown(value)}")
    reason = why_not_real(value, bools=bools)
    if floating and not reason and not value.is_floating_point():
        reason = f"of dtype {value.dtype}: convert it with .float()"
    if reason:
        raise TypeError(f"{name} is {what} and must be a tensor of real numbers; got {shown(value)}, {reason}")
    if not value.numel():
        raise ValueError(f"{name} is {what} and must contain at least one value; got shape {list(value.shape)}")
    if finite:
        all_finite(value, name)
    within(value, name, what, **bounds)
    return value


def all_finite(values: Tensor, name: str) -> None:
    """Raise a ValueError if values of a tensor are NaN or infinite; it says how many, and where the first is."""
    if bool(torch.isfinite(values.sum())):  # then all values are finite; this needs no second array
        return
    wrong = ~torch.isfinite(values)
    if bool(wrong.any()):
        raise ValueError(
            f"{name} must be finite; got {int(wrong.sum())} NaN or infinite of {values.numel()} values, the first at index "
            f"{wrong.nonzero()[0].tolist()}"
        )


def within(values: Tensor, name: str, what: str, **bounds: float) -> None:
    """Raise a ValueError unless all values of a tensor are within these bounds; NaN is outside."""
    if not all(bool(_COMPARISONS[kind](values, bound).all()) for kind, bound in bounds.items()):
        allowed = bounded(**bounds).removeprefix("a finite number ")
        raise ValueError(
            f"{name} is {what} and every value must be {allowed}; got values from {float(values.min()):g} to "
            f"{float(values.max()):g}"
        )


def real_or_tensor(value: Any, name: str, what: str, **bounds: float) -> float | Tensor:
    """A finite number within bounds, or a tensor of such numbers. For the bounds and the errors see `real`."""
    if isinstance(value, Tensor) and value.dim():
        return tensor(value, name, what, **bounds)  # type: ignore[arg-type]
    real(value, name, what, **bounds)
    return value if isinstance(value, Tensor) else float(value)


def shown(value: Any) -> str:
    """A short description of a value, for messages: a number as it is, a tensor by its shape."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, np.generic):
        return shown(value.item())
    kind = type(value).__name__
    if isinstance(getattr(value, "shape", None), tuple):
        return f"a {kind} of shape {list(value.shape)}"
    if isinstance(value, str | bytes | int | float | complex):
        return f"the {kind} {reprlib.repr(value)}"
    return f"a {kind}"


def first_line(error: Exception) -> str:
    """The class of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _is_number(value: Any) -> bool:
    """Whether this is a scalar tensor of a real number that has a value."""
    return isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex() and not value.is_meta


def why_not_real(values: Tensor, *, bools: bool = True) -> str:
    """Why this is no dense tensor of real numbers (or bools, if they are allowed), or an empty string."""
    if values.is_meta:
        return "on the meta device, without values"
    if values.layout != torch.strided:
        return f"sparse, of layout {values.layout}: convert it with .to_dense()"
    if values.dtype not in _REAL or (values.dtype == torch.bool and not bools):
        hint = ": convert it with .dequantize()" if values.is_quantized else ""
        return f"of dtype {values.dtype}{hint}"
    return ""


def whole(least: int = 1, most: int = MOST) -> str:
    """The allowed whole numbers in words."""
    return f"a whole number of at least {least}" if most == MOST else f"a whole number from {least} to {most}"


def bounded(**bounds: float) -> str:
    """The allowed numbers in words."""
    titles = {"above": "above", "least": "at least", "below": "below", "most": "at most"}
    limits = [f"{title} {bounds[kind]:g}" for kind, title in titles.items() if kind in bounds]
    return f"a finite number {' and '.join(limits)}".strip()


T = TypeVar("T")


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
        ValueError: `name` is none of `names`; the message lists them, or says where, and suggests the most similar one.
    """
    if isinstance(name, str) and name in names:
        return name
    allowed = f"{len(names)}, see {listed}" if listed else ", ".join(names)
    raise ValueError(f"no {what} is called {name!r}; there are {allowed}{did_you_mean(name, names, 0.0)}")


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


F = TypeVar("F", bound=Callable[..., Any])


class Constraint:
    """What one argument may be: ``constraint(value, name)`` returns the value as Python's own type, or raises.

    Args:
        check: a function of the value, the argument's name, `what` and the bounds.
        what: what the argument is, such as ``the number of gradient steps``, for messages; of a choice, the `Literal`.
        bounds: of numbers.
    """

    def __init__(self, check: Callable[..., Any], what: Any, **bounds: Any) -> None:
        self.check: Callable[..., Any] = check
        self.what: Any = what
        self.bounds: dict[str, Any] = bounds
        self.optional: bool = False

    def __call__(self, value: Any, name: str) -> Any:
        return None if value is None and self.optional else self.check(value, name, self.what, **self.bounds)

    def allowed(self) -> str:
        """What is allowed, for messages and the reference."""
        if self.check is choice:
            return " or ".join(map(repr, get_args(self.what)))
        texts: dict[Any, Callable[..., str]] = {count: whole, number: bounded}
        return texts[self.check](**self.bounds) if self.check in texts else "True or False"


def number(value: Any, name: str, what: str, **bounds: float) -> float:
    """A finite number within bounds, see `real`; 20 stays 20 where it is shown."""
    checked = real(value, name, what, **bounds)
    return value if type(value) is int else checked


def choice(value: Any, name: str, choices: Any) -> Any:
    """One of the values of a `Literal`."""
    return one_of(value, choices, name)


Flag = functools.partial(Constraint, flag)
Count = functools.partial(Constraint, count)  # bounds: least, 1 by default, and most
Real = functools.partial(Constraint, number)  # bounds: see `real`
Seed = Annotated[int, Count("the seed of the random numbers", least=0)]
EngineName = Literal["auto", "pyro", "traced", "compiled"]
Progress = Annotated[bool, Flag("whether to show a progress bar, None being for a terminal,")] | None


def checked(function: F) -> F:
    """Apply the constraints of a function's signature, or of a dataclass's fields, to the arguments of every call."""
    if isinstance(function, type):
        made: Any = function
        made.__init__ = checked(made.__init__)
        return function
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    by_place = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        placed = list(args)
        for name, constraint in constraints(function).items():
            if name in kwargs:
                kwargs[name] = constraint(kwargs[name], name)
            elif name in by_place[: len(placed)]:
                place = by_place.index(name)
                placed[place] = constraint(placed[place], name)
        return function(*placed, **kwargs)

    call.__annotations__ = {name: _plain(hint) for name, hint in function.__annotations__.items()}
    shown = [p.replace(annotation=call.__annotations__.get(n, p.empty)) for n, p in signature.parameters.items()]
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return cast(F, call)


def constraints_of(public: Any) -> Mapping[str, Constraint]:
    """The constraints that a public function or class checks, by argument; see `checked`."""
    public = inspect.getattr_static(public, "__init__") if isinstance(public, type) else public
    outer = inspect.unwrap(public, stop=lambda function: "__signature__" in vars(function))
    return constraints(inspect.unwrap(public)) if "__signature__" in getattr(outer, "__dict__", {}) else {}


@functools.cache
def constraints(of: Any) -> Mapping[str, Constraint]:
    """The constraints of a function's arguments, by name."""
    names = vars(sys.modules[of.__module__])
    constraints = {name: _constraint(_resolved(hint, names)) for name, hint in inspect.get_annotations(of).items()}
    return {name: constraint for name, constraint in constraints.items() if constraint is not None}


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation names; a class that only a type checker imports has no constraint."""
    try:
        return eval(hint, names) if isinstance(hint, str) else hint
    except NameError:
        if "Annotated" in hint:
            raise
        return None


def _constraint(hint: Any) -> Constraint | None:
    if get_origin(hint) is Annotated:
        return next((each for each in get_args(hint)[1:] if isinstance(each, Constraint)), None)
    if get_origin(hint) is Literal:
        return Constraint(choice, hint)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    constraints = [_constraint(kind) for kind in kinds if kind is not type(None)]
    if len(constraints) != 1 or constraints[0] is None:
        return None
    optional = copy.copy(constraints[0])
    optional.optional = True
    return optional


def _plain(hint: Any) -> Any:
    """An annotation without its constraint, for `help`."""
    if not isinstance(hint, str):
        return hint
    plain = re.sub(r"Annotated\[([^,\]]+), \w+\(.*?\)\]", r"\1", hint, flags=re.DOTALL)
    return {"Seed": "int", "Progress": "bool | None"}.get(plain, plain)


Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def parts(x: Inputs) -> list[Tensor]:
    """The tensors of x, in order."""
    if isinstance(x, Tensor):
        return [x]
    return list(x.values()) if isinstance(x, Mapping) else list(x)


def mapped(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """x with `function` applied to each of its tensors."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {name: function(value) for name, value in x.items()}
    return tuple(function(value) for value in x)


def over_tensors(function: Callable[[Any], Any], tree: Any, kinds: Any = Tensor) -> Any:
    """Apply the function to every tensor, or value of these kinds, of nested tuples, lists and dictionaries."""
    if isinstance(tree, kinds):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(over_tensors(function, value, kinds) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)([over_tensors(function, value, kinds) for value in tree])
    if isinstance(tree, dict):
        return {name: over_tensors(function, value, kinds) for name, value in tree.items()}
    return tree


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and dictionaries, in order."""
    tensors: list[Tensor] = []
    over_tensors(tensors.append, tree)
    return tensors


def named_parts(x: Inputs) -> dict[str, Tensor]:
    """The tensors of x by name: ``x`` for a tensor; ``x_0``, ``x_1`` for a tuple; ``x_input_ids`` for a mapping."""
    if isinstance(x, Tensor):
        return {"x": x}
    keys = x if isinstance(x, Mapping) else range(len(x))
    return {f"x_{key}": tensor for key, tensor in zip(keys, parts(x), strict=True)}


def num_rows(x: Inputs) -> int:
    """N, the number of examples."""
    return parts(x)[0].shape[0]  # not len, which a recording for any number of rows would make a constant


def arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments of the network's call: the tensors of x."""
    return ((), dict(x)) if isinstance(x, Mapping) else (tuple(parts(x)), {})


@runtime_checkable
class HasWeights(Protocol):
    """A model that lists the weights and hyperparameters that it samples, with initial values for training."""

    def weight_sites(self) -> dict[str, Tensor]: ...

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]: ...


@runtime_checkable
class HasPosterior(Protocol):
    """A guide with the posterior of the weight `name`, a distribution whose event shape is the shape of the weight."""

    def posterior(self, name: str) -> TorchDistribution: ...


@runtime_checkable
class HasDraws(Protocol):
    """A guide that samples every weight outside of any Pyro trace: tensors ``[num_samples, ...]`` by site name."""

    def draw(self, num_samples: int) -> Mapping[str, Tensor]: ...


@runtime_checkable
class HasRows(Protocol):
    """A guide whose posterior is computed from its model and all rows of the data, both of which it keeps."""

    model: Any

    def condition_on(self, x: Tensor, y: Tensor) -> None: ...
