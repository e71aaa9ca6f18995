"""The bad values of each kind of argument, by a description in one or two words.

Values are functions, so that every call gets its own. ``COUNT.but("None")`` is the kind without some of its values, for an
argument that allows them; ``COUNT | {...}`` has more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pyrodrop.constraints import Choice, Constraint, Count, Flag, Real


@dataclass(frozen=True)
class Shows:
    """Makes a value whose refusal shows this of it, such as the name of an entry that is missing."""

    shown: str
    make: Callable[[], Any]

    def __call__(self) -> Any:
        return self.make()


class Kind(dict[str, Callable[[], Any]]):
    """Bad values by description."""

    def but(self, *labels: str) -> Kind:
        """The kind without these values."""
        missing = set(labels) - set(self)
        assert not missing, missing
        return Kind({label: value for label, value in self.items() if label not in labels})

    def __or__(self, more: Mapping[str, Callable[[], Any]]) -> Kind:  # type: ignore[override]
        return Kind({**self, **more})

    def only(self, *labels: str) -> Kind:
        """Some of the values, for an argument whose check is tested in full elsewhere."""
        return Kind({label: self[label] for label in labels})


def kind(**values: Any) -> Kind:
    """A kind of plain values; underscores of a description are spaces."""
    return Kind({label.replace("_", " ").strip(): lambda value=value: value for label, value in values.items()})


NO_NUMBER = kind(
    None_=None, bool=True, string="1", word="x", list=[1], complex=1j, dict={}, numpy_bool=np.True_, bytes=b"1"
) | {
    "vector": lambda: torch.ones(2),
    "complex tensor": lambda: torch.tensor(1j),
    "bool tensor": lambda: torch.tensor(True),
    "meta": lambda: torch.ones((), device="meta"),
    "array": lambda: np.ones(1),
    "series": lambda: pd.Series([1.0]),
}
NOT_FINITE = kind(NaN=float("nan"), infinity=float("inf"), minus_infinity=-float("inf"))
COUNT = NO_NUMBER | NOT_FINITE | kind(zero=0, negative=-1, float=3.0, huge=10**30)
SEED = NO_NUMBER | NOT_FINITE | kind(negative=-1, float=1.5, whole_float=1.0, huge=2**80)
REAL = NO_NUMBER | NOT_FINITE
POSITIVE = REAL | kind(zero=0.0, negative=-1.0)
NOT_NEGATIVE = REAL | kind(negative=-1e-3)
FRACTION = REAL | kind(negative=-0.1, above_one=1.5)
"""From 0 to 1, both included."""
INSIDE = FRACTION | kind(zero=0.0, one=1.0)
"""Between 0 and 1."""
DROP_RATE = FRACTION | kind(one=1.0)
FLAG = kind(None_=None, zero=0, one=1, word="no", list=[True], float=1.0, empty="") | {
    "tensor": lambda: torch.tensor(True)
}
NAME = kind(None_=None, unknown="nosuch", empty="", number=3, list=["x"], upper="EXACT", bytes=b"x", bool=True)
PATH = kind(None_=None, number=3, empty="", nul="a\0b", list=["x"], bool=True)
FUNCTION = kind(None_=None, number=1.0, string="relu", list=[abs], bool=True) | {"tensor": lambda: torch.ones(2)}
OBJECT = kind(None_=None, number=1.0, string="x", list=[], dict={}, bool=True) | {"tensor": lambda: torch.ones(2)}
"""For an argument that is an object of this package or of torch: a model, a guide, a prior, a likelihood, a module."""
MODULE = OBJECT | {"class": lambda: nn.Linear, "function": lambda: torch.relu}


UNCHECKED = Kind()
"""For an argument that is passed on, or that the calls of another row check."""


def generated(constraint: Constraint) -> Kind:
    """What a constraint of a signature refuses: other kinds of values, and those just outside of its bounds."""
    if isinstance(constraint, Count):
        refused, step, bounds = NO_NUMBER | NOT_FINITE | kind(half=1.5, whole_float=3.0, huge=10**30), 1, {"least": 1}
    else:
        refused, step, bounds = {Real: REAL, Flag: FLAG, Choice: NAME}[type(constraint)], 1e-3, {}
    past = {"least": -step, "most": step, "above": 0, "below": 0}
    for bound, number in (bounds | constraint.bounds).items():
        refused = refused | kind(**{f"past_{bound}": number + past[bound]})
    return refused.but("None") if constraint.optional else refused


def typed(hint: Any, name: str) -> Kind | None:
    """What an argument of this type refuses; None for types with values of several shapes, such as tensors and mappings."""
    optional = get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    first = kinds[0]
    refused: Kind | None = None
    if set(kinds) in ({str, Path}, {Path}):
        refused = PATH
    elif len(kinds) > 1 or first in (Any, object, Tensor, torch.Size) or get_origin(first) in (dict, list, tuple, type):
        return None
    elif first in (bool, float, str, nn.Module):
        refused = {bool: FLAG, float: REAL, str: OBJECT.but("string"), nn.Module: MODULE}[first]
    elif first is int:
        refused = SEED if name == "seed" else COUNT
    elif get_origin(first) is Literal:
        refused = NAME
    elif get_origin(first) is Callable:
        refused = FUNCTION
    elif isinstance(first, type) and first.__module__ != "builtins":
        refused = OBJECT | {"class": lambda: first}
    return refused.but("None") if refused and optional else refused


def tensor(*shape: int, like: Callable[[tuple[int, ...]], Any] = torch.ones) -> Kind:
    """What is no tensor of real numbers of this shape.

    Args:
        shape: a shape that is right.
        like: makes a good tensor of a shape.
    """
    return kind(None_=None, number=0.5, string="x", bool=True, dict={}, nothing=[], strings=["a", "b"]) | {
        "complex": lambda: like(shape).to(torch.complex64),
        "sparse": lambda: like(shape).to_sparse(),
        "meta": lambda: like(shape).to("meta"),
        "NaN": lambda: torch.full(shape, float("nan")),
        "infinity": lambda: torch.full(shape, float("inf")),
        "another axis": lambda: like((*shape, 3)),
        "empty": lambda: like((0, *shape[1:])),
        "masked array": lambda: np.ma.masked_array(
            like(shape).numpy(), np.arange(like(shape).numel()).reshape(shape) == 0
        ),
        "objects": lambda: np.full(shape, None),
    }
