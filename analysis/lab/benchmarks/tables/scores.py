"""Scores of a method's predictive distributions of test rows.

    log density    mean ln p(y)
    CRPS           int_0^1 2 (1[y < q(u)] - u) (q(u) - y) du, by the midpoints of 199 levels u
    interval       (b - a) + 2 / .05 ((a - y)_+ + (y - b)_+), where [a, b] are the quantiles at 2.5 and 97.5 %
    coverage       share of y in [a, b]
    RMSE           of the mean

Gneiting & Raftery (2007), Strictly Proper Scoring Rules, Prediction, and Estimation, eq. 20 and 43,
https://doi.org/10.1198/016214506000001437; the CRPS as twice the mean of the quantile losses: Laio & Tamea (2007),
Verification tools for probabilistic forecasts of continuous hydrological variables, https://doi.org/10.5194/hess-11-1267-2007.
CRPS, interval score and RMSE are in the units of y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr

LEVELS = (np.arange(199) + 0.5) / 199
ENDS = (0.025, 0.975)
_HALVINGS = 24  # a quantile is exact to 6e-8 of the range of the means, widened by nine standard deviations


@dataclass(frozen=True)
class Mixture:
    """Predictive distributions of N rows, equal mixtures of K normal ones: y_n ~ mean_k N(shift_n + means_nk, sds_nk^2).

    Attributes:
        shift: shift of every row, ``[N]``.
        means: means of the components, ``[N, K]``, or ``[1, K]`` if they are the same for all rows.
        sds: positive, of a shape that broadcasts to that of `means`.
    """

    shift: np.ndarray
    means: np.ndarray
    sds: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The means of y, ``[N]``."""
        return self.shift + self.means.mean(1)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """ln p(y_n), ``[N]``."""
        sds = np.broadcast_to(self.sds, self.means.shape)
        z = (y[:, None] - self.shift[:, None] - self.means) / sds
        return logsumexp(-(z**2) / 2 - np.log(sds), 1) - np.log(2 * np.pi) / 2 - np.log(self.means.shape[1])  # type: ignore[no-any-return]

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """The quantiles at Q levels, ``[N, Q]``, by bisection."""
        sds = np.broadcast_to(self.sds, self.means.shape)
        ends = (self.means - 9 * sds).min(1), (self.means + 9 * sds).max(1)
        low, high = (np.repeat(end[:, None], len(levels), 1) for end in ends)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = ndtr((middle[..., None] - self.means[:, None]) / sds[:, None]).mean(2) < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return self.shift[:, None] + (low + high) / 2


def regression(log_density: np.ndarray, quantiles: np.ndarray, mean: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The scores of N rows.

    Args:
        log_density: ln p(y_n), ``[N]``.
        quantiles: quantiles at `LEVELS` and then at `ENDS`, ``[N, 201]``.
        mean: means of the distributions, ``[N]``.
        y: observations, ``[N]``.
    """
    inner, (low, high) = quantiles[:, :-2] - y[:, None], quantiles[:, -2:].T
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return {
        "log_density": float(log_density.mean()),
        "crps": float((2 * ((inner > 0) - LEVELS) * inner).mean()),
        "interval": float((high - low + outside / ENDS[0]).mean()),
        "coverage": float((outside == 0).mean()),
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
    }
