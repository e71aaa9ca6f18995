"""k-hat: how heavy the tail of importance ratios is.

k is the shape parameter of the generalised Pareto distribution fitted to the largest ratios p / q. The mean of S ratios is
reliable if k < 0.7. Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto Smoothed Importance Sampling,
https://arxiv.org/abs/1507.02646; for a whole approximate posterior: Yao, Vehtari, Simpson & Gelman (2018), Yes, but Did It
Work?, https://arxiv.org/abs/1802.02538.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from arviz_stats.base import array_stats
from torch import Tensor

from pyrodrop.arrays import tensor_of

LIMIT = 0.7
_EQUAL = 1e-12  # relative difference of logarithms that counts as rounding in float64
LEAST = 25  # draws: the tail is a fifth of them, and the fit needs at least five
__all__ = ["LEAST", "LIMIT", "k_hat"]


def k_hat(log_ratio: Tensor) -> float:
    """k-hat of importance ratios; minus infinity if all are equal up to rounding, as for q = p: they have no tail.

    Args:
        log_ratio: log p - log q of each draw, ``[S]`` with S >= 25, up to a constant.

    Raises:
        TypeError: `log_ratio` is no array of numbers.
        ValueError: fewer than 25 draws, or a ratio is NaN or infinite.
    """
    log_ratio = tensor_of(log_ratio, "log_ratio").detach()
    if log_ratio.dim() != 1 or len(log_ratio) < LEAST:
        raise ValueError(
            f"log_ratio must have one number for each draw, and k-hat needs at least {LEAST} draws; got shape "
            f"{list(log_ratio.shape)}"
        )
    if bool((log_ratio.isnan() | (log_ratio == torch.inf)).any()):
        raise ValueError(
            "log_ratio must be finite, or minus infinity where p is 0; got "
            f"{int((log_ratio.isnan() | (log_ratio == torch.inf)).sum())} NaN or infinite of {len(log_ratio)} values"
        )
    top = log_ratio.double().max()
    if bool(top - log_ratio.double().min() <= _EQUAL * top.abs().clamp(min=1)):
        return -math.inf
    with np.errstate(divide="ignore", invalid="ignore"):  # a tail of equal ratios
        _, k = array_stats.psislw(-log_ratio.double().cpu().numpy(), r_eff=1.0)
    return float(k)
