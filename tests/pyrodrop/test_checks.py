"""The checks of arguments and the constraints in signatures: what they take, what they refuse, and what the refusal says."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
import torch

from pyrodrop import checks
from pyrodrop.checks import Count, Progress, Real, Seed, checked, constraints_of


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_count(value: Any) -> None:
    number = checks.count(value, "steps", "the number of steps")
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)])
def test_a_real(value: Any) -> None:
    number = checks.real(value, "lr", "the learning rate", above=0, below=1)
    assert number == 0.5
    assert type(number) is float


@pytest.mark.parametrize("value", [[3, 1], (3, 1), torch.Size([3, 1]), [np.int64(3), torch.tensor(1)]])
def test_counts(value: Any) -> None:
    assert checks.counts(value, "widths", "the sizes") == (3, 1)
    assert checks.counts([], "shape", "the sizes") == ()


def test_scales_and_variances_are_those_that_float32_holds() -> None:
    """The square of a scale at a bound is finite and not 0 in float32, where it is normal."""
    smallest, largest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    for bound in (1e-18, 1e18):
        assert smallest < checks.scale(bound, "scale", "a scale") ** 2 < largest
        assert checks.variance(bound**2, "precision", "a precision") == bound**2
    for outside in (0, 9e-19, 2e18, math.nan):
        with pytest.raises(ValueError, match=r"scale is a scale and must be .* at least 1e-18 and at most 1e\+18; got"):
            checks.scale(outside, "scale", "a scale")
        with pytest.raises(ValueError, match="precision is a precision and must be .* at least 1e-36"):
            checks.variance(outside**2, "precision", "a precision")


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([1.0], TypeError, "loc must be a tensor, the location; got a list"),
        (torch.ones(2, device="meta"), TypeError, "on the meta device"),
        (torch.eye(2).to_sparse(), TypeError, "sparse"),
        (torch.ones(2) * 1j, TypeError, "of dtype torch.complex64"),
        (torch.ones(2).bool(), TypeError, "of dtype torch.bool"),
        (torch.ones(2).int(), TypeError, "of dtype torch.int32"),
        (torch.ones(0, 2), ValueError, r"at least one value; got shape \[0, 2\]"),
        (torch.tensor([1.0, math.nan]), ValueError, r"got 1 NaN or infinite of 2 values, the first at index \[1\]"),
        (torch.tensor([1.0, -3.0]), ValueError, "every value must be above 0; got values from -3 to 1"),
    ],
)
def test_no_tensor(value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        checks.tensor(value, "loc", "the location", floating=True, above=0)


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
