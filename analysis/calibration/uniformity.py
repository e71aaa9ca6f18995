"""Tests of n values in (0, 1) for uniformity, and the direction in which they are not uniform.

    c_i   = #{j: u_j <= i / n},   i = 1 ... n - 1                      ~ Binomial(n, i / n) if u is uniform
    gamma = 2 min_i min(P(C_i <= c_i), P(C_i >= c_i))
    p     = P(gamma of uniform values <= gamma)

    s_j   = Phi^-1(u_j)                                                ~ N(0, 1), normal scores
    z_1   = sqrt(n) mean s                                             ~ N(0, 1), asymmetry
    z_2   = sqrt((n - 1) / 2) (var s - 1)                              ~ N(0, 1) for large n, U-shape if > 0, hump if < 0

p is below a level if the empirical distribution function leaves the simultaneous band of that level: Sailynoja,
Buerkner & Vehtari (2022), https://doi.org/10.1007/s11222-022-10090-6, algorithm 1. p is estimated by simulation, whose
smallest value is about one over the number of simulations; the bound p <= (n - 1) gamma is used if it is smaller. If
posterior and truth are Gaussian, a mean that is wrong by m posterior standard deviations gives s ~ N(-m, 1), which only
z_1 detects, and a variance that is wrong by a factor v gives s ~ N(0, 1 / v), which only z_2 detects. Cook,
Gelman & Rubin (2006), https://doi.org/10.1198/106186006X136976, also test Phi^-1 of the ranks.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, ndtri

LEVEL = 0.05  # level of the test of all quantities together
_SIMULATIONS = 1000
_LEAST = 1e-12  # values are clipped to [_LEAST, 1 - _LEAST], so that scores are finite
_BLOCK = 100  # simulations at a time
Values = NDArray[np.float64]


def p_value(values: Values) -> float:
    """p for n values, ``[n]`` with n >= 2."""
    n = len(values)
    gamma = _gamma(values[None])[0]
    simulated = (1 + int((_simulated(n) <= gamma * (1 + 1e-9)).sum())) / (_SIMULATIONS + 1)
    return float(min(simulated, (n - 1) * gamma))


def asymmetry(values: Values) -> float:
    """z_1: positive if the values are too large."""
    return float(math.sqrt(len(values)) * _scores(values).mean())


def spread(values: Values) -> float:
    """z_2: positive if too many values are near 0 and 1."""
    return float(math.sqrt((len(values) - 1) / 2) * (_scores(values).var(ddof=1) - 1))


def _scores(values: Values) -> Values:
    return np.asarray(ndtri(np.clip(values, _LEAST, 1 - _LEAST)), dtype=np.float64)


def _gamma(values: Values) -> Values:
    """gamma of every row of ``[m, n]``."""
    n = values.shape[1]
    at = np.arange(1, n) / n
    counts = np.stack([np.searchsorted(row, at, side="right") for row in np.sort(values, 1)])
    tails = np.minimum(bdtr(counts, n, at), np.where(counts > 0, bdtrc(np.maximum(counts - 1, 0), n, at), 1.0))
    return np.asarray(2 * tails.min(1), dtype=np.float64)


@functools.lru_cache(maxsize=16)
def _simulated(n: int) -> Values:
    """gamma of uniform values, for each simulation."""
    rng = np.random.default_rng(0)
    return np.concatenate([_gamma(rng.uniform(size=(_BLOCK, n))) for _ in range(_SIMULATIONS // _BLOCK)])
