"""Constraints in signatures: applied to every call, invisible in `help`, and known to what makes the reference."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

from pyrodrop.constraints import Count, Progress, Real, Seed, checked, constraints_of

if TYPE_CHECKING:
    from decimal import Decimal

Colour = Literal["red", "blue"]


@checked
def paint(
    walls: Annotated[int, Count("the number of walls", most=4)],
    price: Decimal | None = None,
    *,
    colour: Colour = "red",
    coats: Annotated[float, Real("the number of coats", above=0)] | None = None,
    seed: Seed = 0,
    progress: Progress = None,
) -> tuple[Any, ...]:
    """Returns what arrives."""
    return walls, price, colour, coats, seed, progress


def test_arguments_arrive_as_pythons_own_types() -> None:
    got = paint(np.int64(3), "dear", coats=np.float32(0.5), seed=np.uint8(7), progress=np.True_)  # type: ignore[arg-type]
    assert got == (3, "dear", "red", 0.5, 7, True)
    assert [type(value) for value in got] == [int, str, str, float, int, bool]
    assert paint(walls=1) == paint(walls=1, coats=None, progress=None) == (1, None, "red", None, 0, None)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"walls": 5}, ValueError, "^walls is the number of walls and must be a whole number from 1 to 4; got 5$"),
        ({"walls": None}, TypeError, "^walls .* got None$"),
        ({"walls": 1, "colour": "blu"}, ValueError, "^colour must be 'red' or 'blue'; got 'blu'; did you mean 'blue'"),
        ({"walls": 1, "coats": 0}, ValueError, "^coats .* above 0; got 0$"),
        ({"walls": 1, "sheds": 1}, TypeError, "unexpected keyword argument 'sheds'"),
        ({}, TypeError, "missing 1 required positional argument: 'walls'"),
    ],
)
def test_what_is_not_allowed_is_refused(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        paint(**arguments)
    if "walls" in arguments:
        with pytest.raises(error, match=match):
            paint(arguments.pop("walls"), **arguments)  # by place as by name


def test_people_see_types() -> None:
    assert str(inspect.signature(paint)).replace("'", "") == (
        "(walls: int, price: Decimal | None = None, *, colour: Colour = red, coats: float | None = None, seed: int = 0, "
        "progress: bool | None = None) -> tuple[Any, ...]"
    )
    assert {name: each.allowed() for name, each in constraints_of(paint).items()} == {
        "walls": "a whole number from 1 to 4",
        "colour": "'red' or 'blue'",
        "coats": "a finite number above 0",
        "seed": "a whole number of at least 0",
        "progress": "True or False",
    }


def test_fields_are_checked() -> None:
    @checked
    @dataclass(frozen=True)
    class Size:
        width: Annotated[int, Count("the width")] = 1
        depth: Annotated[float, Real("the depth")] = 1.0

    assert type(Size(np.int32(2)).width) is int  # type: ignore[arg-type]
    assert repr(Size(depth=3)).endswith("Size(width=1, depth=3)")
    assert str(inspect.signature(Size)).replace("'", "") == "(width: int = 1, depth: float = 1.0) -> None"
    with pytest.raises(ValueError, match="^width is the width and must be a whole number of at least 1; got 0$"):
        Size(0)
    assert list(constraints_of(Size)) == ["width", "depth"]
