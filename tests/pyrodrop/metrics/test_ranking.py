"""AURC and AUROC, against all orders of ties and scipy's Mann-Whitney statistic."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pyrodrop import metrics

pytestmark = pytest.mark.usefixtures("float64")
few = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=6)
scores = st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(lambda v: torch.tensor(v, dtype=torch.float64))


def rising(x: Tensor) -> Tensor:
    """Strictly increasing."""
    return torch.exp(x) + 3 * x**3 - 7


def test_risk_and_coverage_by_hand() -> None:
    confidence, wrong = torch.tensor([0.2, 0.9, 0.8, 0.5]), torch.tensor([True, False, True, False])
    want = torch.tensor([0, 1 / 2, 1 / 3, 2 / 4])
    torch.testing.assert_close(metrics.risk_coverage(confidence, wrong), want)
    assert metrics.aurc(confidence, wrong) == pytest.approx(float(want.mean()))


@settings(max_examples=60, deadline=None)
@given(few)
def test_aurc_is_the_mean_over_all_orders_of_ties(pairs: list[tuple[int, int]]) -> None:
    """Every order that has falling confidence, each as likely: enumerated."""
    orders = [o for o in itertools.permutations(pairs) if all(a[0] >= b[0] for a, b in itertools.pairwise(o))]
    risks = [sum(loss for _, loss in order[:n]) / n for order in orders for n in range(1, len(pairs) + 1)]
    confidence, loss = torch.tensor(pairs, dtype=torch.float64).T
    assert metrics.aurc(confidence, loss) == pytest.approx(math.fsum(risks) / len(risks), abs=1e-12)
    assert metrics.aurc(rising(confidence), loss) == metrics.aurc(confidence, loss)


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
