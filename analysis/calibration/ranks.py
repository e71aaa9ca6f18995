"""Ranks of the truth among posterior draws.

    r   = #{s: f_s < f*} + K,    K ~ Uniform{0, ..., #{s: f_s = f*}}          in 0 ... S
    pit = (r + U) / (S + 1),     U ~ Uniform(0, 1)

If f* and f_1 ... f_S are exchangeable, as for f* from the prior and f_s from the exact posterior, r is uniform on 0 ... S
and pit on (0, 1), also with ties (a discrete posterior, a unit that is 0). Talts et al. (2018),
https://arxiv.org/abs/1804.06788, theorem 1; ties as in Modrak et al. (2023), https://arxiv.org/abs/2211.02383.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ranks_of(truth: Tensor, draws: Tensor, generator: torch.Generator) -> Tensor:
    """The rank of every true value among its draws; ties are broken at random.

    Args:
        truth: true values, ``[...]``.
        draws: draws of each, ``[S, ...]``.

    Returns:
        Integers in 0 ... S, ``[...]``.

    Raises:
        ValueError: a value is NaN, which has no rank.
    """
    if bool(truth.isnan().any()) or bool(draws.isnan().any()):
        raise ValueError("a value to be ranked is NaN: a function or a log likelihood of the prior or the posterior is")
    less, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    uniform = torch.rand(truth.shape, generator=generator, dtype=torch.float64).to(truth.device)
    return less + torch.minimum((uniform * (equal + 1)).long(), equal)


def pit_of(ranks: Tensor, num_draws: int, seed: int) -> Tensor:
    """Probability integral transforms of ranks, in float64; `seed` determines the random numbers U."""
    uniform = torch.rand(ranks.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (ranks + uniform) / (num_draws + 1)
