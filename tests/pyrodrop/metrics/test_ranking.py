"""AUROC, against scipy's Mann-Whitney statistic."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pyrodrop import metrics

pytestmark = pytest.mark.usefixtures("float64")
scores = st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(lambda v: torch.tensor(v, dtype=torch.float64))


def rising(x: Tensor) -> Tensor:
    """Strictly increasing."""
    return torch.exp(x) + 3 * x**3 - 7


@settings(max_examples=60, deadline=None)
@given(scores, scores)
def test_auroc_is_mann_whitneys_u(inside: Tensor, outside: Tensor) -> None:
    """Many ties among whole numbers; antisymmetric; the same under a rising transform."""
    u = stats.mannwhitneyu(outside.numpy(), inside.numpy(), method="asymptotic").statistic
    value = metrics.auroc(inside, outside)
    assert value == pytest.approx(u / (len(inside) * len(outside)), abs=1e-12)
    assert metrics.auroc(outside, inside) == pytest.approx(1 - value, abs=1e-12)
    assert metrics.auroc(rising(inside), rising(outside)) == value


def test_auroc_of_apart_and_equal_scores() -> None:
    low, high = torch.tensor([-math.inf, 0.0]), torch.tensor([1.0, math.inf])
    assert metrics.auroc(low, high) == 1
    assert metrics.auroc(high, low) == 0
    assert metrics.auroc(torch.ones(3), torch.ones(5)) == 0.5
