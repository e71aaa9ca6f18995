"""The checks of arguments: what they take, what they refuse, and what the refusal says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyrodrop import arguments


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_count(value: Any) -> None:
    number = arguments.count(value, "steps", "the number of steps")
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)])
def test_a_real(value: Any) -> None:
    number = arguments.real(value, "lr", "the learning rate", above=0, below=1)
    assert number == 0.5
    assert type(number) is float


def test_a_path() -> None:
    assert arguments.path("a/b", "file", "the file") == Path("a/b")
    for value, kind in ((None, TypeError), (3, TypeError), ("", ValueError), ("a\0b", ValueError)):
        with pytest.raises(kind, match="file is the file and must be a "):
            arguments.path(value, "file", "the file")


@pytest.mark.parametrize("value", [[3, 1], (3, 1), torch.Size([3, 1]), [np.int64(3), torch.tensor(1)]])
def test_counts(value: Any) -> None:
    assert arguments.counts(value, "widths", "the sizes") == (3, 1)
    assert arguments.counts([], "shape", "the sizes") == ()


def test_scales_and_variances_are_those_that_float32_holds() -> None:
    """The square of a scale at a bound is finite and not 0 in float32, where it is normal."""
    smallest, largest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    for bound in (1e-18, 1e18):
        assert smallest < arguments.scale(bound, "scale", "a scale") ** 2 < largest
        assert arguments.variance(bound**2, "precision", "a precision") == bound**2
    for outside in (0, 9e-19, 2e18, math.nan):
        with pytest.raises(ValueError, match=r"scale is a scale and must be .* at least 1e-18 and at most 1e\+18; got"):
            arguments.scale(outside, "scale", "a scale")
        with pytest.raises(ValueError, match="precision is a precision and must be .* at least 1e-36"):
            arguments.variance(outside**2, "precision", "a precision")


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
        arguments.tensor(value, "loc", "the location", floating=True, above=0)
