"""Dropout masks cut from random bits.

    z = [u < t],   u uniform on {0, ..., 2^16 - 1},   t = floor(2^16 keep + v),   v uniform on [0, 1)

u are 16-bit pieces of 64-bit random words, several times as fast as drawing a float for every entry. The threshold is
dithered by one v a draw, so the rate is exact in the mean, E[t] = 2^16 keep, where floor(2^16 keep) alone would miss it by
up to 2^-16. Entries of one draw share v; it correlates them by less than 2^-34 / (keep (1 - keep)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyrodrop.distributions.weight import Size

_LOWEST = -(2**15)


def coins(keep: Tensor, shape: Size) -> Tensor:
    """Independent zeros and ones, ``shape``, each 1 with probability `keep`.

    Args:
        keep: probabilities that broadcast to `shape`; their dtype and device are the result's.
        shape: of the result.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:  # within torch.vmap, which has rules for randomness
        return torch.bernoulli(keep.expand(torch.Size(shape)))
    return _coins(keep, list(shape)).to(keep.dtype)


@torch.library.custom_op("pyrodrop::coins", mutates_args=())
def _coins(keep: Tensor, shape: Sequence[int]) -> Tensor:
    """True with probability `keep`. One operation, so that a trace sees one."""
    if not keep.is_cuda and not any(keep.stride()):  # one rate, expanded
        return toss_one(float(keep.flatten()[0]), shape)
    return toss(keep[None].double(), shape, [None])[0]


@_coins.register_fake
def _(keep: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=keep.device)


def toss(keep: Tensor, shape: Size | Sequence[int], generators: Sequence[torch.Generator | None]) -> Tensor:
    """One draw of coins for every generator (torch's for None), ``[R, *shape]`` bool, by `keep` ``[R, ...]`` float64."""
    shape = torch.Size(shape)
    count = shape.numel()
    bits = torch.empty(len(generators), _words(count), dtype=torch.int64, device=keep.device)
    for row, generator in zip(bits.unbind(0), generators, strict=True):
        row.random_(-(2**63), None, generator=generator)  # random_() alone would leave the sign bit 0
    pieces = bits.view(torch.int16)
    dither = (pieces[:, count].double() - _LOWEST).div(2**16).reshape(-1, *(1,) * (keep.dim() - 1))
    thresholds = (torch.floor(2**16 * keep + dither) + _LOWEST).clamp_max(2**15 - 1).to(torch.int16)
    missing = len(shape) + 1 - keep.dim()
    thresholds = thresholds.reshape(len(keep), *(1,) * missing, *keep.shape[1:])
    coins = pieces.as_strided((len(keep), *shape), (pieces.shape[1], *torch.empty(shape, device="meta").stride()))
    if coins.is_cuda:
        return coins < thresholds
    return torch.from_numpy(
        np.asarray(np.less(coins.numpy(), thresholds.numpy()))
    )  # torch's comparison is not vectorised


def toss_one(keep: float, shape: Size | Sequence[int]) -> Tensor:
    """`toss` of one draw at one rate from torch's generator on the CPU, ``shape``: the same coins with little ado."""
    shape = torch.Size(shape)
    count = shape.numel()
    pieces = torch.empty(_words(count), dtype=torch.int64).random_(-(2**63), None).numpy().view(np.int16)
    dither = (int(pieces[count]) - _LOWEST) / 2**16
    threshold = np.int16(min(math.floor(2**16 * keep + dither) + _LOWEST, 2**15 - 1))
    return torch.from_numpy(np.asarray(np.less(pieces[:count].reshape(shape), threshold)))


def _words(count: int) -> int:
    """64-bit words of 4 pieces: one piece for every coin and one for the dither."""
    return (count + 4) // 4
