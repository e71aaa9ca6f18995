"""Masks cut from random words: their rate by enumeration, their independence by counting."""

from __future__ import annotations

import math

import pytest
import torch

from pyrodrop import masks
from pyrodrop.masks import keep_mask, row_correlation

RATES = [0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("rate", RATES)
def test_the_rate_is_exact(rate: float, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every value of a piece and a fine grid of dithers the share kept is 1 - rate to 1e-6: no rounding to 2^-b."""
    values, dithers = 2**bits, 4096 if bits == 8 else 64
    every = torch.arange(values).to(torch.uint8) if bits == 8 else (torch.arange(values) - 2**15).to(torch.int16)
    monkeypatch.setattr(masks, "_pieces", lambda *_: every.expand(dithers, values))
    monkeypatch.setattr(torch, "rand", lambda *_, **__: (torch.arange(dithers)[:, None] + 0.5).double() / dithers)
    kept = keep_mask((dithers, values), rate, bits=bits).sum(dtype=torch.float64) / (dithers * values)
    assert abs(float(kept) - (1 - rate)) < 1e-6


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("bits", [8, 16])
def test_the_correlation_of_a_row_is_the_one_stated(rate: float, bits: int) -> None:
    """Var[t] / 4^b is the covariance that a shared threshold t gives two entries; t takes two values."""
    low = math.floor(2**bits * rate)
    high = 2**bits * rate - low
    variance = high * (low + 1) ** 2 + (1 - high) * low**2 - (2**bits * rate) ** 2
    want = variance / 4**bits / (rate * (1 - rate))
    assert row_correlation(rate, bits) == pytest.approx(want, rel=1e-4, abs=1e-12)
    assert row_correlation(rate, 16) < 1e-7
    assert row_correlation(0.25, 8) == 0


@pytest.mark.parametrize("bits", [8, 16, None])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_draws_have_the_rate_and_are_independent(rate: float, bits: int | None) -> None:
    """Every column's rate, every pair of columns and neighbours in a column: within 4.5 s.e. of independent coins."""
    torch.manual_seed(1)
    rows, columns = 200_000, 24  # 24 bytes are 3 words: every place in a word is seen
    coins = keep_mask((rows, columns), rate, bits=bits).double()
    z = (coins.mean(0) - (1 - rate)) / math.sqrt(rate * (1 - rate) / rows)
    assert float(z.abs().max()) < 4.5
    pairs = torch.corrcoef(coins.T) - torch.eye(columns)
    assert float(pairs.abs().max()) * math.sqrt(rows) < 4.5
    centred = coins - coins.mean(0)
    neighbours = (centred[1:] * centred[:-1]).mean(0) / (rate * (1 - rate))
    assert float(neighbours.abs().max()) * math.sqrt(rows) < 4.5


def test_shapes_seeds_and_ends() -> None:
    state = torch.get_rng_state()
    first, again = (keep_mask((3, 5, 7), 0.4, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert (first.shape, first.dtype) == ((3, 5, 7), torch.bool)
    assert not torch.equal(keep_mask((99,), 0.4), keep_mask((99,), 0.4))
    assert bool(keep_mask((1000,), 0.0, bits=16).all())
    assert keep_mask((4, 0), 0.3).shape == (4, 0)
    assert keep_mask((9,), 0.3, device="cpu").device.type == "cpu"


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"drop_rate .* must lie in \[0, 1\); got 1.2"):
        keep_mask((3,), 1.2)
    with pytest.raises(ValueError, match="bits is the number of random bits .* 8 or 16; got 12"):
        keep_mask((3,), 0.2, bits=12)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [8, 16])
def test_masks_on_a_gpu(bits: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    coins = keep_mask((100_000, 24), 0.3, bits=bits, device="cuda").double()
    assert coins.device.type == "cuda"
    z = (coins.mean(0) - 0.7) / math.sqrt(0.21 / 100_000)
    assert float(z.abs().max()) < 4.5
