"""Constraints of arguments, which stand in the signatures of public functions:

    @checked
    def sample(model: NetworkModel, *, chains: Annotated[int, Count("the number of chains")] = 64, engine: Name = "auto"):

`checked` applies them before the function runs and passes Python's own types on. ``X | None`` allows None, and a `Literal`
is a constraint by itself. `help` shows the types; the reference on the website also says which values are allowed.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pyrodrop import arguments
from pyrodrop.names import one_of

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
        texts = {arguments.count: arguments.whole, number: arguments.bounded}
        return texts[self.check](**self.bounds) if self.check in texts else "True or False"


def number(value: Any, name: str, what: str, **bounds: float) -> float:
    """A finite number within bounds, see `arguments.real`; 20 stays 20 where it is shown."""
    checked = arguments.real(value, name, what, **bounds)
    return value if type(value) is int else checked


def choice(value: Any, name: str, choices: Any) -> Any:
    """One of the values of a `Literal`."""
    return one_of(value, choices, name)


Flag = functools.partial(Constraint, arguments.flag)
Count = functools.partial(Constraint, arguments.count)  # bounds: least, 1 by default, and most
Real = functools.partial(Constraint, number)  # bounds: see `arguments.real`
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
