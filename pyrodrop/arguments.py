"""Check the arguments of public functions. An error is one line: the argument, what is allowed and what was passed.

Each check returns the value as Python's own type. Scalars of NumPy and torch are accepted as numbers; ``True`` and
``False`` are not, and a number is not accepted as a flag.
"""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def counts(value: Any, name: str, what: str, *, least: int = 1, length: int | None = None) -> tuple[int, ...]:
    """A sequence of `length` (any number if None) whole numbers of at least `least`. For its errors see `count`."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != (length or len(value)):
        size = "" if length is None else f"{length} "
        raise TypeError(f"{name} are {what} and must be a list of {size}whole numbers; got {shown(value)}")
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
