"""Conformal intervals and sets: coverage over repetitions is k / (n + 1), whatever the model."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyrodrop import Prediction
from pyrodrop.metrics import conformal

LEVEL = 0.8


def predicted(x: Tensor, sd: float = 0.1) -> Prediction:
    """A wrong model, and too sure: y is a skew function of x with a noise that grows."""
    f = torch.stack([0.5 * x, 0.6 * x])
    return Prediction(f, dist.Normal(f, sd * (1 + x.abs())).to_event(1))


def drawn(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 1, generator=generator)
    return x, x + x.abs() * torch.empty(rows, 1).exponential_(generator=generator)


def test_coverage_is_exact_in_finite_samples() -> None:
    """The share of new rows that lie inside, one per held-out set."""
    n, repetitions, inside, generator = 8, 600, 0, torch.Generator().manual_seed(0)
    for _ in range(repetitions):
        x, y = drawn(n + 1, generator)
        low, high = conformal(predicted(x[1:]), y[1:]).interval(predicted(x[:1]), LEVEL)
        inside += int(low[0, 0] <= y[0, 0] <= high[0, 0])
    exact = math.ceil((n + 1) * LEVEL) / (n + 1)  # 8 / 9, not .8
    assert abs(inside / repetitions - exact) < 4 * math.sqrt(exact * (1 - exact) / repetitions)
    x, y = drawn(2000, torch.Generator().manual_seed(1))
    low, high = predicted(x).interval(LEVEL)
    assert float(((low <= y) & (y <= high)).double().mean()) < 0.4  # what the model says of itself


def test_ends_are_order_statistics() -> None:
    """Computed again in NumPy, of two columns of y."""
    torch.manual_seed(0)
    f, y, new = torch.randn(3, 30, 2), torch.randn(30, 2), torch.randn(3, 4, 2)
    held_out, later = (Prediction(each, dist.Normal(each, 0.5).to_event(1)) for each in (f, new))
    low, high = conformal(held_out, y).interval(later, 0.9)
    (below, above), ends = ([end.double().numpy() for end in each.interval(0.9)] for each in (held_out, later))
    scores = np.sort(np.maximum(below - y.double().numpy(), y.double().numpy() - above), axis=0)
    reach = scores[math.ceil(31 * 0.9) - 1]
    np.testing.assert_allclose(low.numpy(), ends[0] - reach, rtol=1e-6)
    np.testing.assert_allclose(high.numpy(), ends[1] + reach, rtol=1e-6)


def test_sets_contain_the_label() -> None:
    generator, n, repetitions, hits = torch.Generator().manual_seed(4), 19, 400, 0
    for _ in range(repetitions):
        logits = 2 * torch.randn(1, n + 1, 3, generator=generator)
        y = torch.multinomial((logits[0] / 3).softmax(-1), 1, generator=generator)[:, 0]  # far less sure than the model
        of = [Prediction(part, dist.Categorical(logits=part)) for part in (logits[:, 1:], logits[:, :1])]
        hits += int(conformal(of[0], y[1:]).sets(of[1], LEVEL)[0, y[0]])
    exact = math.ceil((n + 1) * LEVEL) / (n + 1)
    assert abs(hits / repetitions - exact) < 4 * math.sqrt(exact * (1 - exact) / repetitions)


def test_counts_and_too_few_rows() -> None:
    rate = torch.full((1, 40, 1), 4.0)
    counts = Prediction(rate, dist.Poisson(rate).to_event(1))
    low, high = conformal(counts, torch.arange(40)[:, None] % 9).interval(counts, 0.9)
    assert (low[0], high[0]) == (0.0, 9.0)  # 1 to 8 by the model, and 5 of the 40 are zeros
    f = torch.zeros(1, 10, 1)
    few = Prediction(f, dist.Normal(f, 1.0).to_event(1))
    with pytest.raises(ValueError, match="needs at least 19 rows; got 10"):
        conformal(few, torch.arange(10.0)[:, None]).interval(few, 0.95)
