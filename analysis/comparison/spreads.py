"""Ratio of the spreads of two functions at every point: which of them is more certain, and where.

    s_f(x_n) = ( mean over outputs of Var[f(x_n)] )^(1/2)          [N], over samples; the sd if there is one output
    ratio    = s_f(x_n) / s_g(x_n)                                 below 1 where f is more certain than the reference g

Neither includes the noise of y, which would hide differences. From logits their mean is subtracted, as in `between_points`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spread(f: Tensor) -> Tensor:
    """The spread of samples ``[S, N, ...]`` at every point, ``[N]`` in float64; NaN for fewer than two samples."""
    if len(f) < 2:
        return torch.full((f.shape[1],), math.nan, dtype=torch.float64)
    values = f.double().flatten(2) if f.dim() > 2 else f.double()[..., None]
    return values.var(0).mean(-1).sqrt()  # exactly zero where all samples are equal


def spread_ratio(f: Tensor, g: Tensor) -> Tensor:
    """The ratio for samples ``[S, N, ...]`` and ``[T, N, ...]``, ``[N]`` in float64; NaN where g does not vary."""
    ours, theirs = spread(f), spread(g)
    return torch.where(theirs > 0, ours / theirs, math.nan)
