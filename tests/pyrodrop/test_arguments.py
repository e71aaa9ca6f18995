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
    found = arguments.count(value, "steps", "the number of steps")
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize(
    "value", [3.0, "3", None, True, np.True_, torch.tensor(True), torch.tensor(3.0), torch.tensor([3]), [3], 3j]
)
def test_no_count(value: Any) -> None:
    with pytest.raises(TypeError, match=r"steps is the number of steps and must be a whole number of at least 1; got "):
        arguments.count(value, "steps", "the number of steps")


@pytest.mark.parametrize(("value", "allowed"), [(0, "from 1 to 5"), (6, "from 1 to 5"), (2**80, "from 1 to 5")])
def test_a_count_out_of_range(value: int, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"a whole number {allowed}; got {value}"):
        arguments.count(value, "steps", "the number of steps", most=5)


def test_a_seed_fits_torchs_generator() -> None:
    torch.manual_seed(arguments.seed(arguments.MOST))
    with pytest.raises(ValueError, match="seed is .* of at least 0; got -1"):
        arguments.seed(-1)
    with pytest.raises(ValueError, match="got 9223372036854775808"):
        arguments.seed(2**63)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)])
def test_a_real(value: Any) -> None:
    found = arguments.real(value, "lr", "the learning rate", above=0, below=1)
    assert found == 0.5
    assert type(found) is float


@pytest.mark.parametrize("value", ["0.5", None, True, np.False_, 0.5j, torch.tensor([0.5]), [0.5], np.zeros(1)])
def test_no_real(value: Any) -> None:
    with pytest.raises(
        TypeError, match=r"lr is the rate and must be a finite number above 0; got (the|a|an|None|True) ?"
    ):
        arguments.positive(value, "lr", "the rate")


@pytest.mark.parametrize("value", [0, 1, -1e-9, math.nan, math.inf, -math.inf])
def test_a_real_out_of_bounds(value: float) -> None:
    with pytest.raises(ValueError, match="a finite number above 0 and below 1; got"):
        arguments.real(value, "rate", "a rate", above=0, below=1)


def test_bounds_that_are_allowed_themselves() -> None:
    assert [arguments.real(v, "a", "b", least=0, most=1) for v in (0, 1)] == [0.0, 1.0]
    with pytest.raises(ValueError, match="at least 0 and at most 1; got 1.5"):
        arguments.real(1.5, "a", "b", least=0, most=1)
    with pytest.raises(ValueError, match="must be a finite number; got inf"):
        arguments.real(math.inf, "a", "b")


def test_a_flag() -> None:
    assert arguments.flag(np.True_, "joint", "whether") is True
    for value in (0, 1, "no", None, torch.tensor(True), [True]):
        with pytest.raises(TypeError, match="joint says whether and must be True or False; got "):
            arguments.flag(value, "joint", "whether")


def test_a_path() -> None:
    assert arguments.path("a/b", "file", "the file") == Path("a/b")
    for value, kind in ((None, TypeError), (3, TypeError), ("", ValueError), ("a\0b", ValueError)):
        with pytest.raises(kind, match="file is the file and must be a "):
            arguments.path(value, "file", "the file")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"), (True, "True"), ("x", "the str 'x'"), (2.5, "the float 2.5"), ({}, "a dict"),
        (torch.zeros(2, 3), "a Tensor of shape [2, 3]"), (np.zeros(4), "a ndarray of shape [4]"),
    ],
)  # fmt: skip
def test_what_arrived_in_a_few_words(value: Any, words: str) -> None:
    assert arguments.shown(value) == words


def test_progress_is_yes_no_or_up_to_the_terminal() -> None:
    assert [arguments.progress(value) for value in (True, False, None)] == [True, False, None]
    with pytest.raises(TypeError, match="progress says whether .* True or False; got the int 1"):
        arguments.progress(1)
