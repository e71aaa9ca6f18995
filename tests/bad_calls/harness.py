"""The rows of the table: one call with one argument that is bad, and what came of it.

A bad argument has to be refused with a ValueError or TypeError that this package raises itself. Its message names the
argument, says what is allowed and shows what arrived. Values that only look bad have to work, with a check of what they
mean.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import numbers
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import pyrodrop
from pyrodrop.constraints import Constraint, constraints_of
from pyrodrop.training.settings import Settings

from .kinds import Kind, generated, typed

ROOT = Path(__file__).resolve().parents[2]
OURS = [ROOT / folder for folder in ("pyrodrop", "guides", "models", "analysis")]
ALLOWED = re.compile(r"\b(must|needs?|takes?|there (are|is)|lies|lie|at least|one of|instead|only)\b")


@dataclass(frozen=True)
class Call:
    """A public callable, a call of it that works, and the kinds of its arguments.

    Args:
        name: the public name below `pyrodrop`, such as ``priors.Gaussian``; methods are named too, ``guides.Point.average``.
        good: returns the arguments of a call that works, as keywords.
        args: the kinds of arguments whose signature does not say all that is refused, by name.
        function: what is called with keywords; the object of that name if None.
        works: values that have to be accepted: by "argument: description" the value and a check of the result, which raises
            AssertionError or returns False where the result is wrong.
    """

    name: str
    good: Callable[[], dict[str, Any]] = dict
    args: Mapping[str, Kind] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    works: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of all arguments: of those that `args` leaves out, by the constraints and types of the signature."""
        types = hints(self.name)
        if self.function:  # which may have fewer arguments
            types = {name: types[name] for name in self.good() if name in types}
        kinds = {name: kind for name, hint in types.items() if (kind := typed(hint, name)) is not None}
        return kinds | {name: generated(each) for name, each in constrained(self.name).items()} | dict(self.args)

    def run(self, **changed: Any) -> Any:
        """The call with some arguments changed."""
        function = self.function or public(self.name)
        torch.manual_seed(0)
        return function(**{**self.good(), **changed})


@dataclass(frozen=True)
class Row:
    """One call with one argument changed; `check` is given for values that have to work."""

    call: Call
    argument: str = ""
    label: str = "good"
    value: Callable[[], Any] | None = None
    check: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        return f"{self.call.name}-{self.argument}-{self.label}".replace(" ", "_")

    def judge(self) -> str:
        """What is wrong with the outcome of this row; empty if nothing is."""
        value = self.value() if self.value else None
        changed = {self.argument: value} if self.argument else {}
        try:
            result = self.call.run(**changed)
        except Exception as error:
            if self.check is not None:
                return f"refused: {type(error).__name__}: {error}"
            return refusal(error, self.argument, value, getattr(self.value, "shown", ""))
        if self.check is None:
            return f"accepted; the result is {type(result).__name__}"
        return "" if self.check(result) in (None, True) else "accepted with another meaning"


@dataclass(frozen=True)
class Case:
    """The rows of one argument of a call, as one test: there are thousands of rows."""

    call: Call
    argument: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return f"{self.call.name}-{self.argument or 'good'}"

    def wrong(self) -> dict[str, str]:
        """What is wrong, by the description of the value."""
        judged = {row.label: row.judge() for row in self.rows}
        return {label: said for label, said in judged.items() if said}


def cases(calls: Iterable[Call]) -> list[Case]:
    """The rows of these calls, by argument."""
    all_cases = []
    for call in calls:
        by_argument: dict[str, list[Row]] = {}
        for row in rows([call]):
            by_argument.setdefault(row.argument, []).append(row)
        all_cases += [Case(call, argument, tuple(of)) for argument, of in by_argument.items()]
    return all_cases


def rows(calls: Iterable[Call]) -> list[Row]:
    """The rows of these calls: for each the call that works, its bad values, and the values that have to work."""
    all_rows = []
    for call in calls:
        all_rows.append(Row(call, check=lambda result: None))
        all_rows += [
            Row(call, name, label, value) for name, kind in call.kinds.items() for label, value in kind.items()
        ]
        for key, (value, check) in call.works.items():
            argument, label = key.split(": ")
            all_rows.append(Row(call, argument, label, value, check))
    return all_rows


def refusal(error: Exception, argument: str, value: Any, shown: str = "") -> str:
    """What is wrong with an error that refuses `value` for `argument`; empty if nothing is.

    Args:
        error: what was raised.
        argument: the name of the argument.
        value: what was passed for it.
        shown: what the message shows of the value; one of `words` if empty.
    """
    said = f"{type(error).__name__}: {error}"
    if type(error) not in (ValueError, TypeError) and not isinstance(error, ValueError | TypeError):
        return f"another kind of error: {said}"
    if not refusal_is_ours(error):
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised inside {where.filename}:{where.lineno}: {said}"
    message = str(error)
    named = r"\b(name|called)\b" if argument == "name" else rf"\b{re.escape(argument)}\b"
    if not re.search(named, message):
        return f"does not name {argument}: {said}"
    if not ALLOWED.search(message):
        return f"does not say what is allowed: {said}"
    arrived = message.partition("got ")[2] or message
    if not any(word in arrived for word in ([shown] if shown else ways_to_show(value))):
        return f"does not show what arrived: {said}"
    return ""


def refusal_is_ours(error: Exception) -> bool:
    """Whether a ``raise`` of this package made the error."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return raised_by_us(where.filename, where.lineno or 0)


def raised_by_us(file: str, line: int) -> bool:
    """Whether this line is a ``raise`` of the package, and not a call that failed inside of another library."""
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in OURS) and line in raising_lines(path)


@functools.cache
def raising_lines(path: Path) -> frozenset[int]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return frozenset(line for node in raises for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def ways_to_show(value: Any) -> list[str]:
    """Ways to show a value in a message, one of which is enough."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool | np.bool_):
        return [str(value)]
    if isinstance(value, str | bytes):
        return [repr(value), repr(value)[:20]]
    if isinstance(value, complex):
        return [kind]
    if isinstance(value, numbers.Number) or (isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta):
        number = value.item() if isinstance(value, Tensor) else value
        shown = [str(number), repr(number), f"a {kind}", f"the {kind}", _short(number)]
        return [*filter(None, shown), "[]", "()", str(getattr(value, "dtype", kind))]
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        of = [f"{list(shape)}", f"{tuple(shape)}", f"a {kind}", str(getattr(value, "dtype", kind)), *_odd(value)]
        return [*of, "sparse"] if isinstance(value, Tensor) and value.layout != torch.strided else of
    shown = [f"a {kind}", f"an {kind}", value.__name__ if isinstance(value, type) else kind]
    if isinstance(value, list | tuple | dict | set):
        shown += [] if value else ["empty", "none", "(0,)", "[0]"]
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        shown += [str(value), repr(value), *(word for item in parts for word in ways_to_show(item))]
    return shown


def _short(number: Any) -> str:
    try:
        return f"{number:g}" if _plain(number) else ""
    except OverflowError:
        return "inf"


def _plain(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _odd(values: Any) -> list[str]:
    """The values of an array that a message may single out: those that are not finite, and the extremes."""
    if isinstance(values, Tensor):
        if values.is_meta or values.layout != torch.strided or values.is_complex() or values.is_quantized:
            return ["meta", "sparse", "complex"]
        values = values.detach().cpu().double().numpy()
    values = values.to_numpy() if isinstance(values, pd.Series | pd.DataFrame) else np.asarray(values)
    if values.dtype.kind not in "biuf" or not values.size:
        return []
    flat = values.astype(float).ravel()
    ends = [] if np.isnan(flat).all() else [np.nanmin(flat), np.nanmax(flat)]
    odd = (*flat[~np.isfinite(flat)][:1], *ends)
    return [word for v in odd for word in (f"{v:g}", f"{v:.4g}", str(v), str(int(v)) if math.isfinite(v) else "NaN")]


def constrained(name: str) -> Mapping[str, Constraint]:
    """The constraints that a public callable checks by its signature."""
    try:
        function = public(name)
    except AttributeError:  # a name that says what is tested
        return {}
    options = constraints_of(Settings) if name in ("fit", "fit_replicates", "Training") else {}
    return {
        argument: constraint
        for argument, constraint in {**options, **constraints_of(function)}.items()
        if argument in inspect.signature(function).parameters
    }


def hints(name: str) -> dict[str, Any]:
    """The types of a public callable's arguments, without those that only a type checker imports."""
    try:
        function = public(name)
    except AttributeError:  # a name that says what is tested
        return {}
    function = inspect.unwrap(function.__init__ if isinstance(function, type) else function)
    names = vars(sys.modules.get(getattr(function, "__module__", ""), pyrodrop))
    types = {}
    for argument, hint in inspect.get_annotations(function).items():
        with contextlib.suppress(NameError):
            types[argument] = eval(hint, names) if isinstance(hint, str) else hint
    return {argument: hint for argument, hint in types.items() if argument not in ("return", "validate_args")}


def public(name: str) -> Any:
    """The object of this name below `pyrodrop`."""
    return functools.reduce(getattr, name.split("."), pyrodrop)
