"""Dropout masks from random bits: rates and correlations by enumeration, independence by counting, seeds, shapes, errors."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from pyrodrop.distributions import coins as module
from pyrodrop.distributions.coins import Masks, coins, fill_stacked, keep_mask

LOWEST = -(2**15)


def every_mask(rate: float, dithers: int, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """`keep_mask` of every integer of 8 or 16 bits, ``[dithers, 2^bits]``, with evenly spaced dithers for v."""
    bits = 8 if (256 * rate).is_integer() else 16
    values = torch.arange(2**bits).to(torch.uint8) if bits == 8 else (torch.arange(2**bits) + LOWEST).to(torch.int16)
    words = values.repeat(dithers).view(torch.int64)
    monkeypatch.setattr(module, "_fill", lambda *_: words)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: (torch.arange(dithers)[:, None] + 0.5).double() / dithers)
    return keep_mask((dithers, 2**bits), rate)


@pytest.mark.parametrize("keep", [2**-16, 1e-3, 0.1, 0.5, 0.95, 1 - 1e-4, 1 - 1e-6, 1.0])
def test_the_rate_of_coins_is_exact(keep: float) -> None:
    """Every 16-bit integer with each of 64 evenly spaced dithers: the share of ones is `keep`, not a multiple of 2^-16."""
    dithers = ((torch.arange(64) + 0.5) * 2**10).long() + LOWEST
    pieces = torch.cat([(torch.arange(2**16) + LOWEST).expand(64, -1), dithers[:, None]], 1).to(torch.int16)
    masks = Masks([torch.tensor(keep)], [(2**16,)], 64)
    masks._bits.view(torch.int16)[:, : 2**16 + 1] = pieces
    masks.compare(64)
    ones = int(masks.masks[0].sum(dtype=torch.int64))
    assert ones / 2**22 == pytest.approx(keep, abs=2**-22)


@pytest.mark.parametrize("keep", [1e-3, 0.1, 0.5, 0.95, 1 - 1e-4])
def test_draws_of_coins_have_the_rate(keep: float) -> None:
    torch.manual_seed(0)
    ones = int(coins(torch.tensor(keep), (1_000_000,)).sum(dtype=torch.float64))
    assert stats.binomtest(ones, 1_000_000, keep).pvalue > 1e-4


def test_a_rate_of_one_keeps_everything() -> None:
    """A million draws: at 1 - 2^-16 the mask would have about 15 zeros."""
    assert bool((coins(torch.tensor(1.0), (1_000_000,)) == 1).all())
    assert bool((coins(torch.tensor([1.0, 0.5]), (1_000_000, 2))[:, 0] == 1).all())


def test_every_draw_has_a_dither_of_its_own() -> None:
    """At a drop rate of half a 65536th a fixed threshold drops nothing or twice as many; the mean is 38 of 5 million."""
    draws, entries, rate = 5000, 1000, 0.5 / 2**16
    torch.manual_seed(0)
    masks = Masks([torch.tensor(1 - rate, dtype=torch.float64)], [(entries,)], draws)
    masks.draw(slice(draws))
    masks.compare(draws)
    ones = int(masks.masks[0].sum(dtype=torch.int64))
    low, high = stats.poisson.interval(0.9999, draws * entries * rate)
    assert 0 < low <= draws * entries - ones <= high


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_entries_of_coins_are_independent(keep: float) -> None:
    """Counts of the 16 patterns of four neighbours: chi-squared."""
    torch.manual_seed(0)
    draws = coins(torch.tensor(keep), (400_000,)).reshape(-1, 4)
    patterns = (draws * torch.tensor([1.0, 2, 4, 8])).sum(1).long().bincount(minlength=16)
    ones = torch.tensor([bin(p).count("1") for p in range(16)])
    expected = 100_000 * keep ** ones.double() * (1 - keep) ** (4 - ones.double())
    assert stats.chisquare(patterns.numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("keep", [0.0, 1e-3, 0.3, 0.5, 255.5 / 256, 1.0])
def test_masks_of_a_stack_have_their_rates(keep: float) -> None:
    """Also between multiples of 1/256: the rate is a count of 4 million, and so is that of a replicate beside it."""
    torch.manual_seed(0)
    masks, rates = torch.empty(4, 2, 1000, 500, dtype=torch.uint8), torch.tensor([keep, 0.75])
    fill_stacked(masks, rates[:, None, None])
    assert bool((masks <= 1).all())
    for replicate, rate in enumerate(rates.double().tolist()):
        ones = int(masks[:, replicate].sum())
        low, high = stats.binom.interval(1 - 1e-5, 2_000_000, rate) if 0 < rate < 1 else (rate * 2e6, rate * 2e6)
        assert low <= ones <= high


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_masks_of_a_stack_are_independent(axis: int) -> None:
    """Of neighbours along every axis: steps, replicates, rows, units. Counts of four patterns, chi-squared."""
    torch.manual_seed(1)
    masks = torch.empty(10, 10, 60, 60, dtype=torch.uint8)
    fill_stacked(masks, torch.full((10, 1, 60), 0.3 + 0.1 / 256))
    first, second = (masks.unflatten(axis, (-1, 2)).select(axis + 1, n).flatten().long() for n in (0, 1))
    counts = (2 * first + second).bincount(minlength=4).double()
    chances = torch.tensor([1 - 0.3 - 0.1 / 256, 0.3 + 0.1 / 256]).double()
    expected = counts.sum() * (chances[:, None] * chances).flatten()
    assert stats.chisquare(counts.numpy(), expected.numpy() * float(counts.sum() / expected.sum())).pvalue > 1e-5


def test_vmap_decides_about_randomness() -> None:
    keep, over = torch.tensor(0.5), torch.zeros(3)
    draws = torch.vmap(lambda z: z + coins(keep, (100,)), randomness="different")(over)
    assert not torch.equal(draws[0], draws[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda z: z + coins(keep, (100,)))(over)


def test_masks_of_several_steps_are_those_of_single_draws() -> None:
    """Of one rate and of several, drawn in two parts."""
    rates = [torch.tensor(0.3), torch.tensor([0.05, 0.5, 0.95, 1 - 1e-7]), torch.tensor(0.7).expand(4)]
    shapes = [(5,), (3, 4), (2, 4)]
    torch.manual_seed(0)
    want = [[coins(rate, shape) for rate, shape in zip(rates, shapes, strict=True)] for _ in range(3)]
    masks = Masks(rates, shapes, 3)
    torch.manual_seed(0)
    masks.draw(slice(0, 1))
    masks.draw(slice(1, 3))
    masks.compare(3)
    for step, singles in enumerate(want):
        assert all(torch.equal(one, of[step]) for one, of in zip(singles, masks.masks, strict=True))


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.5, 0.625, 0.7, 0.9, 0.999])
def test_the_rate_of_a_keep_mask_is_exact(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share kept of every integer is 1 - rate to 1e-6; rounding to 2^-16 would be off by more."""
    kept = every_mask(rate, 64, monkeypatch)
    assert float(kept.sum(dtype=torch.float64)) / kept.numel() == pytest.approx(1 - rate, abs=1e-6)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.7, 0.25, 0.5])
def test_the_correlation_within_a_row_is_the_one_stated(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given v, entries are independent with one probability of True; its variance over v is the covariance of two."""
    share = every_mask(rate, 128, monkeypatch).double().mean(1)
    fraction = math.modf(2**16 * rate)[0]
    stated = fraction * (1 - fraction) / (4**16 * rate * (1 - rate))
    assert stated == pytest.approx(float(share.var(correction=0)) / (rate * (1 - rate)), rel=0.05)
    assert (stated > 0) == (rate not in (0.25, 0.5))


@pytest.mark.few(2)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_a_keep_mask_has_its_rate_and_independent_entries(rate: float) -> None:
    """The rate of every column, every pair of columns, and neighbours in a column, within 5.5 standard errors: of 324 normal
    numbers one is beyond with probability 1.2e-5."""
    torch.manual_seed(1)
    rows, columns = 200_000, 24  # 24 bytes are 3 words, so that every place in a word is seen
    mask = keep_mask((rows, columns), rate).double()
    z = (mask.mean(0) - (1 - rate)) / math.sqrt(rate * (1 - rate) / rows)
    assert float(z.abs().max()) < 5.5
    pairs = torch.corrcoef(mask.T) - torch.eye(columns)
    assert float(pairs.abs().max()) * math.sqrt(rows) < 5.5
    centred = mask - mask.mean(0)
    neighbours = (centred[1:] * centred[:-1]).mean(0) / (rate * (1 - rate))
    assert float(neighbours.abs().max()) * math.sqrt(rows) < 5.5


def test_shapes_seeds_and_ends_of_a_keep_mask() -> None:
    state = torch.get_rng_state()
    first = keep_mask((3, 5, 7), 0.4)
    torch.set_rng_state(state)
    assert torch.equal(first, keep_mask((3, 5, 7), 0.4))
    assert (first.shape, first.dtype) == ((3, 5, 7), torch.bool)
    assert not torch.equal(keep_mask((99,), 0.4), keep_mask((99,), 0.4))
    assert bool(keep_mask((1000,), 0.0).all())
    assert keep_mask((4, 0), 0.3).shape == (4, 0)
    assert keep_mask((), 0.3).shape == keep_mask((), 0.5).shape == ()
    assert keep_mask((9,), 0.3, device="cpu").device.type == "cpu"
