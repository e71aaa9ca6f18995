"""k-hat: how heavy the tail of importance ratios is.

k is the shape of the generalised Pareto distribution fitted to the largest ratios p / q; the mean of S ratios is of use
where k < .7. Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto Smoothed Importance Sampling; of a whole approximate
posterior: Yao, Vehtari, Simpson & Gelman (2018), Yes, but Did It Work?
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from torch import Tensor

from pyrodrop.analysis.comparison.az import az

LIMIT = 0.7
LEAST = 25  # draws: the tail is a fifth of them, and is fitted to at least five
__all__ = ["LEAST", "LIMIT", "k_hat"]


def k_hat(log_ratio: Tensor) -> float:
    """Of log ratios ``[S]``, known up to a constant; a ValueError for fewer than 25."""
    if len(log_ratio) < LEAST:
        raise ValueError(f"k-hat is fitted to at least {LEAST} draws; got {len(log_ratio)}")
    ratios = xr.DataArray(log_ratio.double().numpy(), dims="draw")
    assert az is not None  # importing arviz-stats adds the accessor
    with np.errstate(divide="ignore", invalid="ignore"):  # ratios that are all equal have no tail to fit
        _, k = (-ratios).azstats.psislw(r_eff=1.0, dim="draw")
    return float(k)
