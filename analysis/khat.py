"""k-hat: how heavy the tail of importance ratios is.

k is the shape of the generalised Pareto distribution fitted to the largest ratios p / q; the mean of S ratios is of use
where k < .7. Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto Smoothed Importance Sampling; of a whole approximate
posterior: Yao, Vehtari, Simpson & Gelman (2018), Yes, but Did It Work?
"""

from __future__ import annotations

import xarray as xr
from torch import Tensor

from pyrodrop.analysis.az import az

LIMIT = 0.7
__all__ = ["LIMIT", "k_hat"]


def k_hat(log_ratio: Tensor) -> float:
    """Of log ratios ``[S]``, known up to a constant."""
    ratios = xr.DataArray(log_ratio.double().numpy(), dims="draw")
    assert az is not None  # importing arviz-stats adds the accessor
    _, k = (-ratios).azstats.psislw(r_eff=1.0, dim="draw")
    return float(k)
