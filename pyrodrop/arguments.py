"""Check the arguments of public functions: one line that names the argument, what is allowed and what arrived.

Each check returns the value as Python's own type. NumPy's and torch's scalars are accepted where Python's numbers are;
``True`` and ``False`` are no numbers, and a number is no flag.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import reprlib
from pathlib import Path
from typing import Any

from torch import Tensor

MOST = 2**63 - 1  # the largest number of 64 bits, which torch takes for sizes and seeds


def count(value: Any, name: str, what: str, *, least: int = 1, most: int = MOST) -> int:
    """A whole number from `least` to `most`.

    Args:
        value: what arrived.
        name: of the argument.
        what: what the argument is, such as ``the number of gradient steps``.
        least, most: the allowed range, both ends included.

    Raises:
        TypeError: it is not a whole number; 3.0 is none either.
        ValueError: it is out of range.
    """
    allowed = f"a whole number of at least {least}" if most == MOST else f"a whole number from {least} to {most}"
    if isinstance(value, Tensor) and value.dim() == 0 and not (value.is_floating_point() or value.is_complex()):
        value = value.item()  # a bool stays one
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {what} and must be {allowed}; got {shown(value)}")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} is {what} and must be {allowed}; got {number}")
    return number


def seed(value: Any, name: str = "seed") -> int:
    """The seed of random numbers: a whole number of at least 0. For its errors see `count`."""
    return count(value, name, "the seed of the random numbers", least=0)


def real(
    value: Any,
    name: str,
    what: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number within bounds.

    Args:
        value: what arrived.
        name: of the argument.
        what: what the argument is, such as ``the precision of the noise``.
        least, most: bounds that are allowed themselves.
        above, below: bounds that are not.

    Raises:
        TypeError: it is not a real number.
        ValueError: it is out of bounds, NaN or infinite.
    """
    allowed = _bounds(least, most, above, below)
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex():
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {what} and must be {allowed}; got {shown(value)}")
    number = float(value)
    inside = least <= number <= most and (above is None or number > above) and (below is None or number < below)
    if not (math.isfinite(number) and inside):
        raise ValueError(f"{name} is {what} and must be {allowed}; got {number:g}")
    return number


def positive(value: Any, name: str, what: str) -> float:
    """A finite number above 0. For its errors see `real`."""
    return real(value, name, what, above=0)


def flag(value: Any, name: str, what: str) -> bool:
    """True or False.

    Raises:
        TypeError: it is neither; 0, 1, None and words are not taken for one.
    """
    if type(value).__name__ in ("bool", "bool_") and not isinstance(value, Tensor):
        return bool(value)
    raise TypeError(f"{name} says {what} and must be True or False; got {shown(value)}")


def progress(value: Any) -> bool | None:
    """Whether to show a progress bar: True, False, or None, where the output is a terminal; otherwise a TypeError."""
    if value is None:
        return None
    return flag(value, "progress", "whether to show a progress bar, None being for a terminal,")


def path(value: Any, name: str, what: str) -> Path:
    """The path of a file or folder; a TypeError if it is not a str or a path, a ValueError if it is empty."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is {what} and must be a str or a pathlib.Path; got {shown(value)}")
    text = os.fspath(value)
    if not text or "\0" in str(text):
        raise ValueError(f"{name} is {what} and must be a path; got {text!r}")
    return Path(os.fsdecode(text))


def shown(value: Any) -> str:
    """What arrived, in a few words: a number as it is, a tensor by its shape."""
    if value is None or isinstance(value, bool):
        return str(value)
    kind = type(value).__name__
    if isinstance(value, Tensor) or hasattr(value, "shape"):
        return f"a {kind} of shape {list(value.shape)}"
    if isinstance(value, str | bytes | int | float | complex):
        return f"the {kind} {reprlib.repr(value)}"
    return f"a {kind}"


def _bounds(least: float, most: float, above: float | None, below: float | None) -> str:
    """The allowed numbers in words."""
    low = f"above {above:g}" if above is not None else f"at least {least:g}" if least > -math.inf else ""
    high = f"below {below:g}" if below is not None else f"at most {most:g}" if most < math.inf else ""
    limits = " and ".join(filter(None, (low, high)))
    return f"a finite number {limits}".strip()
