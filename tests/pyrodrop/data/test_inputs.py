"""Inputs of one tensor or of several, as a data set takes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyrodrop.data import Dataset
from pyrodrop.scaling import Standardize

IDS, MASK, Y = torch.arange(12).reshape(6, 2), torch.ones(6, 2), torch.arange(6) % 2


def test_a_tuple_and_a_mapping_are_kept_as_they_are() -> None:
    pair = Dataset((IDS, MASK.numpy()), Y)
    assert isinstance(pair.x, tuple)
    assert len(pair) == 6
    assert torch.equal(pair.x[0], IDS)
    assert torch.equal(pair.x[1], MASK)
    named = Dataset.of(({"ids": IDS, "length": torch.full((6,), 2)}, Y))
    assert list(named.x) == ["ids", "length"]
    assert named.x["length"].shape == (6,)  # only a single vector becomes a column
    assert Dataset((1.0, 2.0), torch.zeros(2)).x.shape == (2, 1)  # type: ignore[arg-type]  # numbers are one array
    assert Dataset(np.ones(3), np.zeros(3)).x.shape == (3, 1)  # type: ignore[arg-type]


def test_rows_are_those_of_every_tensor() -> None:
    targets = Standardize(1.0, 2.0)
    whole = Dataset({"ids": IDS, "mask": MASK}, Y.double(), targets=targets)
    for part, rows in (
        (whole.first(2), [0, 1]),
        (whole.rows(torch.tensor([4, 1])), [4, 1]),
        (whole.rows(Y == 1), [1, 3, 5]),
    ):
        assert torch.equal(part.x["ids"], IDS[rows])
        assert torch.equal(part.x["mask"], MASK[rows])
        assert torch.equal(part.y, Y[rows].double())
        assert part.targets is targets


def test_only_one_tensor_of_real_numbers_is_standardised() -> None:
    for x, said in (((IDS, MASK), "x is a tuple of 2"), (IDS, "x has dtype torch.int64")):
        with pytest.raises(ValueError, match=said):
            Dataset(x, Y.float()).standardized()
        with pytest.raises(ValueError, match=said):
            Dataset(x, Y, inputs=Standardize(0.0, 2.0))
    with pytest.raises(ValueError, match="y has dtype torch.int64"):
        Dataset(MASK, Y).standardized()
