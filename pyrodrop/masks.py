"""Dropout masks at the speed of their random bits.

    kept = [u >= t],   u uniform on {0, ..., 2^b - 1},   t = floor(2^b r) + [v < frac(2^b r)],   v ~ U(0, 1)

r the drop rate, u the b = 8 or 16 bit pieces of 64-bit random words. The threshold t is dithered: a rate that is no
multiple of 2^-b is met exactly in the mean, E[t] = 2^b r, where cutting at floor(2^b r) alone would miss it by up to 2^-b.

One v serves a row (all entries along the last axis), rows are independent. So the entries of one row share their
threshold, which correlates them by

    corr = F (1 - F) / (4^b r (1 - r)),   F = frac(2^b r)

0 where r is a multiple of 2^-b; else at most 1 / (4^(b+1) r (1 - r)): 4e-5 at r = .1 with 8 bits, 6e-10 with 16. Across
rows there is none. The default takes 8 bits where they are exact and 16 elsewhere.
For rates that are tensors, in one operation that a trace can see, there is `pyrodrop.distributions.coins`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrodrop.distributions.bernoulli_mixture import check_drop_rate

_PIECES = {8: torch.uint8, 16: torch.int16}


def keep_mask(
    shape: Sequence[int],
    drop_rate: float,
    *,
    bits: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Independent coins, True with probability 1 - drop_rate, as a bool tensor.

    Args:
        shape: of the mask; the entries along its last axis share a dithered threshold, see the module's text.
        drop_rate: probability of False, in [0, 1).
        bits: random bits an entry, 8 or 16; None takes 8 where `drop_rate` is a multiple of 1/256 and 16 elsewhere.
        generator: of the random words, on `device`; PyTorch's default one if None.
        device: of the mask; the CPU if None.

    Raises:
        ValueError: a rate outside [0, 1), or bits other than 8 and 16.
    """
    check_drop_rate(drop_rate)
    if bits is None:
        bits = 8 if (256 * drop_rate).is_integer() else 16
    if bits not in _PIECES:
        raise ValueError(f"bits is the number of random bits an entry of a mask takes, 8 or 16; got {bits}")
    shape = torch.Size(shape)
    pieces = _pieces(shape, bits, generator, device)
    if drop_rate > 0.5:  # the rarer side is counted, so that a threshold fits its piece
        return pieces < _thresholds(shape, 1 - drop_rate, bits, generator, device)
    return pieces >= _thresholds(shape, drop_rate, bits, generator, device)


def row_correlation(drop_rate: float, bits: int) -> float:
    """Correlation of two entries of a row: the module's second equation."""
    part = math.modf(2**bits * drop_rate)[0]
    return part * (1 - part) / (4**bits * drop_rate * (1 - drop_rate)) if part else 0.0


def _pieces(
    shape: torch.Size, bits: int, generator: torch.Generator | None, device: torch.device | str | None
) -> Tensor:
    """Uniform integers of `bits` bits; 16-bit ones are signed."""
    count = shape.numel()
    words = torch.empty(-(-count * bits // 64), dtype=torch.int64, device=device)
    words.random_(-(2**63), None, generator=generator)  # random_() alone leaves the top bit 0
    return words.view(_PIECES[bits])[:count].view(shape)


def _thresholds(
    shape: torch.Size,
    rate: float,
    bits: int,
    generator: torch.Generator | None,
    device: torch.device | str | None,
) -> Tensor | int:
    """How many values of a piece count, one number a row, counted from the smallest; mean 2^bits rate."""
    part, whole = math.modf(2**bits * rate)
    lowest = 0 if bits == 8 else -(2**15)
    if not part:
        return int(whole) + lowest
    dither = torch.rand((*shape[:-1], 1), generator=generator, device=device) < part
    return dither.to(_PIECES[bits]) + (int(whole) + lowest)
