"""A few lines about an object, as text for a terminal and as HTML for a notebook.

An object has a method ``card`` that returns a `Card`; the class decorator `carded` makes ``__repr__`` and ``_repr_html_`` of
it. Other objects are `Described`, in one line. The HTML needs no style sheet of its own: it has the colours of its page,
light or dark.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyrodrop.names import did_you_mean

_WIDE = 80  # columns of a terminal
_POINTS, _WIDTH, _HEIGHT = 200, 360, 90  # of a curve
T = TypeVar("T")


@dataclass(frozen=True)
class Card:
    """What is worth saying about an object.

    Attributes:
        title: what it is, in a few words.
        facts: names and values, one line each.
        curves: losses by step, ``[steps]`` each, for the HTML.
    """

    title: str
    facts: dict[str, str]
    curves: Sequence[Tensor] = ()

    def text(self) -> str:
        """The card for a terminal, in at most 80 columns where words allow it."""
        margin = 4 + max(map(len, self.facts), default=0)
        lines = [self.title]
        for name, value in self.facts.items():
            first = f"  {name}".ljust(margin)
            lines += textwrap.wrap(value, _WIDE, initial_indent=first, subsequent_indent=" " * margin) or [first]
        return "\n".join(lines)

    def html(self) -> str:
        """The card for a notebook."""
        cell = (
            'style="text-align:left;vertical-align:top;padding:1px 12px 1px 0;border:0;background:none;color:inherit"'
        )
        rows = "".join(
            f"<tr><th {cell}>{html.escape(name)}</th><td {cell}>{html.escape(value)}</td></tr>"
            for name, value in self.facts.items()
        )
        table = f'<table style="color:inherit">{rows}</table>'
        return f"<div><strong>{html.escape(self.title)}</strong>{table}{_svg(self.curves)}</div>"


class Described:
    """An object that is printed in one line, its `describe()`."""

    def describe(self) -> str:
        """A description in one line, for tables and saved files."""
        return type(self).__name__

    def __repr__(self) -> str:
        return self.describe()


def carded(cls: type[T]) -> type[T]:
    """Give a class the text and HTML of its ``card()``, and hints for names that it does not have."""

    def __repr__(self: Any) -> str:  # noqa: N807
        return str(self.card().text())

    def _repr_html_(self: Any) -> str:
        return str(self.card().html())

    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807
        if hasattr(type(self), name):  # a property that failed
            return object.__getattribute__(self, name)
        public = [each for each in dir(self) if not each.startswith("_")]
        hint = "" if name.startswith("_") else did_you_mean(name, public)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    cls.__getattr__ = __getattr__  # type: ignore[attr-defined]
    cls.__repr__ = __repr__  # type: ignore[assignment,method-assign]
    cls._repr_html_ = _repr_html_  # type: ignore[attr-defined]
    return cls


def size(values: Any) -> str:
    """The shape of a tensor or of several in words: ``[1000, 3]``, or ``x_0 [20, 3], x_1 [20, 5]``."""
    if isinstance(values, Tensor):
        return f"{list(values.shape)} {str(values.dtype).removeprefix('torch.')}"
    named = values.items() if isinstance(values, dict) else enumerate(values)
    return ", ".join(f"x_{name} {size(value)}" for name, value in named)


def number(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def _svg(curves: Sequence[Tensor]) -> str:
    """Losses as lines in the colour of the text. Above the 95th percentile, as at the first steps, they are cut."""
    shown = [means(curve) for curve in curves if len(curve) > 1]
    finite = torch.cat([curve[curve.isfinite()] for curve in shown]) if shown else torch.empty(0)
    if not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.quantile(0.95))
    span = max(high - low, 1e-12 * max(abs(high), 1.0))
    paths = []
    for curve in shown:
        heights = ((curve.clamp(low, high) - low) / span).nan_to_num(1.0, 1.0, 0.0)
        points = [
            f"{_WIDTH * place / (len(curve) - 1):.1f},{_HEIGHT * (1 - height):.1f}"
            for place, height in enumerate(heights.tolist())
        ]
        paths.append(f'<polyline points="{" ".join(points)}" opacity="{max(0.15, len(shown) ** -0.5):.2f}"/>')
    ends = f"loss from {number(high)} to {number(low)}, {max(map(len, curves))} steps"
    return (
        f'<svg role="img" aria-label="{ends}" viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 26}" width="{_WIDTH + 8}" '
        f'height="{_HEIGHT + 26}" style="max-width:100%" fill="none" stroke="currentColor" stroke-width="1.3">'
        f'{"".join(paths)}<text x="0" y="{_HEIGHT + 18}" font-size="12" fill="currentColor" stroke="none">{ends}</text>'
        "</svg>"
    )


def means(curve: Tensor) -> Tensor:
    """A curve as at most 200 means of neighbouring values, float64."""
    return torch.stack([chunk.mean() for chunk in curve.detach().double().tensor_split(min(len(curve), _POINTS))])
