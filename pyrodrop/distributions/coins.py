"""Dropout masks cut from random bits.

    z = [u < t],   u uniform on {0, ..., 2^16 - 1},   t = floor(2^16 keep + v),   v uniform on [0, 1)

u are 16-bit pieces of 64-bit random words, several times as fast as drawing a float for every entry. The threshold is
dithered by one v a draw, so the rate is exact in the mean, E[t] = 2^16 keep, where floor(2^16 keep) alone would miss it by
up to 2^-16. Entries of one draw share v; it correlates them by less than 2^-34 / (keep (1 - keep)). Masks are bytes, 0 or 1:
torch's and its compiler's bool masks are widened to floats one entry at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.distributions.weight import Size

_LOWEST, _HIGHEST = -(2**15), 2**15 - 1


def coins(keep: Tensor, shape: Size) -> Tensor:
    """Independent zeros and ones, ``shape``, each 1 with probability `keep`.

    Args:
        keep: probabilities that broadcast to `shape`; their dtype and device are the result's.
        shape: of the result.
    """
    # torch.vmap has rules for randomness, and torch.jit no list of sizes as an argument
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.jit.is_tracing():
        return torch.bernoulli(keep.expand(torch.Size(shape)))
    return _coins(keep, list(shape)).to(keep.dtype)


@torch.library.custom_op("pyrodrop::coins", mutates_args=())
def _coins(keep: Tensor, shape: Sequence[int]) -> Tensor:
    """1 with probability `keep`, in bytes. One operation, so that a trace sees one."""
    if not keep.is_cuda and not any(keep.stride()):  # one rate, expanded
        return toss_one(float(keep.flatten()[0]), shape)
    return toss(keep[None].double(), shape, [None])[0]


@_coins.register_fake
def _(keep: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, device=keep.device)


def toss(keep: Tensor, shape: Size | Sequence[int], generators: Sequence[torch.Generator | None]) -> Tensor:
    """One draw of coins for every generator (torch's for None), ``[R, *shape]`` bytes, by `keep` ``[R, ...]`` float64."""
    return Tosses([keep], [shape], generators).draw()[0]


class Tosses:
    """What `toss` gives for each of `keeps` and `shapes` one after the other, with one call of every generator."""

    def __init__(
        self,
        keeps: Sequence[Tensor],
        shapes: Sequence[Size | Sequence[int]],
        generators: Sequence[torch.Generator | None],
    ) -> None:
        words = [_words(torch.Size(shape).numel()) for shape in shapes]
        bits = torch.empty(len(generators), sum(words), dtype=torch.int64, device=keeps[0].device)
        self._rows = list(zip(bits.unbind(0), generators, strict=True))
        self._draws = list(zip(keeps, shapes, bits.view(torch.int16).split([4 * n for n in words], 1), strict=True))

    def draw(self) -> list[Tensor]:
        """Fresh coins, ``[R, *shape]`` for every shape."""
        for row, generator in self._rows:
            row.random_(-(2**63), None, generator=generator)  # random_() alone would leave the sign bit 0
        return [_compare(*draw) for draw in self._draws]


def _compare(keep: Tensor, shape: Size | Sequence[int], pieces: Tensor) -> Tensor:
    """Coins ``[R, *shape]`` from their pieces ``[R, at least the coins and one]``, the next of which is the dither."""
    shape = torch.Size(shape)
    count = shape.numel()
    coins = pieces[:, :count].unflatten(1, shape) if shape else pieces[:, 0]
    missing = len(shape) + 1 - keep.dim()
    keep = keep.reshape(len(keep), *(1,) * missing, *keep.shape[1:])
    dither = pieces[:, count].reshape(-1, *(1,) * len(shape))
    if coins.is_cuda:
        thresholds = torch.floor(2**16 * keep + (dither.double() - _LOWEST) / 2**16) + _LOWEST
        return (coins < thresholds.clamp_max(_HIGHEST).to(torch.int16)).view(torch.uint8)
    cuts = np.floor(2**16 * keep.numpy() + (dither.numpy() - float(_LOWEST)) / 2**16) + _LOWEST
    return _less(coins.numpy(), np.minimum(cuts, _HIGHEST).astype(np.int16))


def toss_one(keep: float, shape: Size | Sequence[int]) -> Tensor:
    """`toss` of one draw at one rate from torch's generator on the CPU, ``shape``: the same coins with little ado."""
    shape = torch.Size(shape)
    count = shape.numel()
    pieces = torch.empty(_words(count), dtype=torch.int64).random_(-(2**63), None).numpy().view(np.int16)
    dither = (int(pieces[count]) - _LOWEST) / 2**16
    threshold = np.int16(min(math.floor(2**16 * keep + dither) + _LOWEST, _HIGHEST))
    return _less(pieces[:count].reshape(shape), threshold)


def _less(pieces: np.ndarray, threshold: Any) -> Tensor:
    """By NumPy: torch's comparison is not vectorised, and its small operations cost more."""
    return torch.from_numpy(np.asarray(np.less(pieces, threshold))).view(torch.uint8)


def _words(count: int) -> int:
    """64-bit words of 4 pieces: one piece for every coin and one for the dither."""
    return (count + 4) // 4
