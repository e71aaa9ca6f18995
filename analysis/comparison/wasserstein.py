"""Wasserstein-2 distance between samples of a function's value, at every point.

    W_2(F, G)^2 = int_0^1 (F^-1(u) - G^-1(u))^2 du          mean_s (f_(s) - g_(s))^2 for S sorted samples of each

In one dimension the optimal coupling is the one of equal quantiles: Peyre & Cuturi (2019), Computational Optimal Transport,
remark 2.30, https://arxiv.org/abs/1803.00567. With S and T samples, the quantile functions are steps of widths 1/S and 1/T.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wasserstein(f: Tensor, g: Tensor) -> Tensor:
    """W_2 of the empirical distributions of samples ``[S, N, ...]`` and ``[T, N, ...]``, at every point.

    Returns:
        ``[N, ...]`` in float64, in the units of f; one distance per element of f.
    """
    f, g = f.double().sort(0).values, g.double().sort(0).values
    if len(f) == len(g):
        return (f - g).square().mean(0).sqrt()
    ours, theirs = len(f), len(g)
    # in units of 1 / (S T), so that the steps of both are whole numbers
    ends = torch.cat((torch.arange(1, ours + 1) * theirs, torch.arange(1, theirs + 1) * ours)).unique().to(f.device)
    widths = torch.diff(ends, prepend=ends.new_zeros(1)).double() / (ours * theirs)
    gaps = f[(ends - 1) // theirs] - g[(ends - 1) // ours]
    return torch.einsum("k,k...->...", widths, gaps.square()).sqrt()
