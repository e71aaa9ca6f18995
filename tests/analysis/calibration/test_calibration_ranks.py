"""Ranks of the truth among posterior draws, and the test of their uniformity, against direct loops, SciPy and ArviZ."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyrodrop.analysis.calibration import uniformity
from pyrodrop.analysis.calibration.ranks import pit_of, ranks_of


def test_ties_are_broken_at_random_so_that_ranks_stay_uniform() -> None:
    """Truth and draws from a coin: ranks uniform on 0 ... S, though only two values exist."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(2, (9000,), generator=generator).double()
    draws = torch.randint(2, (8, 9000), generator=generator).double()
    ranks = ranks_of(truth, draws, generator)
    assert stats.chisquare(torch.bincount(ranks, minlength=9)).pvalue > 0.01
    assert int(ranks.min()) == 0
    assert int(ranks.max()) == 8


def test_without_ties_a_rank_counts_what_is_below() -> None:
    draws = torch.tensor([[0.1], [0.2], [0.3]])
    ranks = [int(ranks_of(torch.tensor([t]), draws, torch.Generator())) for t in (0.0, 0.15, 0.25, 1.0)]
    assert ranks == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="a value to be ranked is NaN"):
        ranks_of(torch.tensor([math.nan]), draws, torch.Generator())


def test_pit_values_of_uniform_ranks_are_uniform() -> None:
    ranks = torch.arange(10).repeat(500)
    pit = pit_of(ranks, 9, 0)
    assert bool(((pit * 10).floor() == ranks).all())
    assert stats.kstest(pit.numpy(), "uniform").pvalue > 0.01


# ------------------------------------------------------------------------------------------------- test of uniformity


def test_p_values_of_uniform_values_are_uniform() -> None:
    rng = np.random.default_rng(1)
    p = [uniformity.p_value(rng.uniform(size=50)) for _ in range(400)]
    for level in (
        0.05,
        0.2,
        0.5,
    ):  # three standard errors; counts are discrete, so that the test is a little conservative
        assert np.mean(np.array(p) < level) < level + 3 * math.sqrt(level * (1 - level) / 400)
        assert np.mean(np.array(p) < level) > 0.6 * level - 3 * math.sqrt(level * (1 - level) / 400)


def test_gamma_is_the_smallest_tail() -> None:
    values = np.array([0.05, 0.1, 0.15, 0.9])
    counts = [3, 3, 3]  # below 1/4, 2/4 and 3/4
    tails = [min(stats.binom.cdf(c, 4, i / 4), stats.binom.sf(c - 1, 4, i / 4)) for i, c in enumerate(counts, 1)]
    assert uniformity._gamma(values[None])[0] == pytest.approx(2 * min(tails))


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (0.5, 1.0), (0.0, 2.0**0.5)])
def test_scores_separate_bias_from_width(mean: float, sd: float) -> None:
    """For normal scores with this mean and standard deviation, the expectation of both statistics."""
    n = 4000
    values = stats.norm.cdf(stats.norm(mean, sd).ppf((np.arange(n) + 0.5) / n))
    assert uniformity.asymmetry(values) == pytest.approx(math.sqrt(n) * mean, abs=0.1)
    assert uniformity.spread(values) == pytest.approx(math.sqrt(n / 2) * (sd**2 - 1), abs=0.5)
