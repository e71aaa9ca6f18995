"""A few lines of text about an object: a `Card` by the decorator `carded`, or one line, `Described`."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

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
