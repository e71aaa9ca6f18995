"""Dropout masks from random bits have the law of Bernoulli trials."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from pyrodrop.distributions.coins import coins, toss, toss_one


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95, 1 - 1e-4, 1e-3])
def test_rate(keep: float) -> None:
    """Within 4 standard errors of 4 million, and exact in the mean over the dither: E[floor(2^16 keep + v)] = 2^16 keep."""
    n = 4_000_000
    draws = coins(torch.tensor(keep), (n,))
    assert abs(float(draws.double().mean()) - keep) < 4 * math.sqrt(keep * (1 - keep) / n) + 2**-16
    v = (torch.arange(2**16, dtype=torch.float64)) / 2**16
    assert float(torch.floor(2**16 * torch.tensor(keep).double() + v).mean() / 2**16) == pytest.approx(keep, abs=1e-7)


def test_the_dither_is_drawn_anew() -> None:
    """At half a 65536th no piece is under the threshold without the dither; with it, 38 of 5 million are."""
    draws, entries, rate = 5000, 1000, 0.5 / 2**16
    heads = int(toss(torch.full((draws, 1), rate, dtype=torch.float64), (entries,), [None] * draws).sum())
    low, high = stats.poisson.interval(0.9999, draws * entries * rate)
    assert 0 < low <= heads <= high


def test_entries_are_independent() -> None:
    """Counts of the 16 patterns of neighbouring fours: chi-squared."""
    draws = coins(torch.tensor(0.3), (400_000,)).reshape(-1, 4)
    patterns = (draws * torch.tensor([1.0, 2, 4, 8])).sum(1).long().bincount(minlength=16)
    ones = torch.tensor([bin(p).count("1") for p in range(16)])
    expected = 100_000 * 0.3**ones * 0.7 ** (4 - ones)
    assert stats.chisquare(patterns.numpy(), (expected * 100_000 / expected.sum()).numpy()).pvalue > 1e-4


def test_rates_by_column_and_by_generator() -> None:
    rates = torch.tensor([0.2, 0.8])
    draws = coins(rates, (50_000, 2))
    torch.testing.assert_close(draws.mean(0), rates, atol=0.01, rtol=0)
    generators = [torch.Generator().manual_seed(s) for s in (1, 2)]
    many = toss(torch.tensor([0.2, 0.8]).double(), (7, 30), generators)
    assert many.shape == (2, 7, 30)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        assert torch.equal(coins(torch.tensor(0.8), (7, 30)).bool(), many[1])
    assert coins(torch.tensor(0.5), ()).shape == ()
    assert float(coins(torch.tensor(1.0), (1000,)).min()) == 1.0


def test_within_vmap_its_rules_of_randomness_hold() -> None:
    keep, over = torch.tensor(0.5), torch.zeros(3)
    draws = torch.vmap(lambda z: z + coins(keep, (100,)), randomness="different")(over)
    assert not torch.equal(draws[0], draws[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda z: z + coins(keep, (100,)))(over)


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.95, 1 - 1e-7])
def test_one_draw_is_the_first_of_many(keep: float) -> None:
    for seed in range(20):
        (many,) = toss(torch.tensor([keep]).double(), (7, 30), [torch.Generator().manual_seed(seed)])
        torch.manual_seed(seed)
        assert torch.equal(toss_one(float(torch.tensor(keep).double()), (7, 30)), many)
