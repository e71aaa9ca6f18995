"""k-hat: how heavy the tail of importance ratios is.

k is the shape parameter of the generalised Pareto distribution fitted to the largest ratios p / q. The mean of S ratios is
reliable if k < 0.7. Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto Smoothed Importance Sampling,
https://arxiv.org/abs/1507.02646; for a whole approximate posterior: Yao, Vehtari, Simpson & Gelman (2018), Yes, but Did It
Work?, https://arxiv.org/abs/1802.02538.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from torch import Tensor

from pyrodrop.analysis.comparison.az import az

LIMIT = 0.7
LEAST = 25  # draws: the tail is a fifth of them, and the fit needs at least five
__all__ = ["LEAST", "LIMIT", "k_hat"]


def k_hat(log_ratio: Tensor) -> float:
    """k-hat of importance ratios.

    Args:
        log_ratio: log p - log q of each draw, ``[S]`` with S >= 25, up to a constant.

    Raises:
        ValueError: fewer than 25 draws.
    """
    if len(log_ratio) < LEAST:
        raise ValueError(f"k-hat needs at least {LEAST} draws; got {len(log_ratio)}")
    ratios = xr.DataArray(log_ratio.double().numpy(), dims="draw")
    assert az is not None  # importing arviz-stats adds the accessor
    with np.errstate(divide="ignore", invalid="ignore"):  # ratios that are all equal have no tail to fit
        _, k = (-ratios).azstats.psislw(r_eff=1.0, dim="draw")
    return float(k)
