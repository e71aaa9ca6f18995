"""Evidence and posterior of a logistic regression with one weight under a log-uniform prior, by quadrature.

    L(w) = prod_n sigmoid(a_n w)                      a_n = x_n, or -x_n for observations of the other class
    Z(low, high) = int L(w) / |w| dw                  over low <= ln |w| <= high
                 = int_low^high [L(e^u) + L(-e^u)] du

L(0) = 2^-N, so Z grows as 2 L(0) per unit of -low, without bound: with the improper prior 1 / |w| no posterior exists. The
normalised prior divides by 2 (high - low). Its evidence tends to L(0) and its posterior to the point 0.
Where the data can be separated, L(w) tends to 1 in one direction, and Z also grows by 1 per unit of high.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import expit, log_expit

from pyrodrop.distributions import TruncatedLogUniform

_FLAT = -12.0  # ln |w| below which L is L(0) up to rounding times the data


def likelihood(w: float, signed: Sequence[float]) -> float:
    """L(w)."""
    return float(np.exp(log_expit(np.asarray(signed) * w).sum()))


def evidence(signed: Sequence[float], low: float, high: float, *, below: float | None = None) -> float:
    """Evidence under `TruncatedLogUniform(low, high)`; with `below`, its part from ln |w| < below."""
    prior = TruncatedLogUniform(low, high)
    end = high if below is None else min(below, high)

    def integrand(u: float) -> float:
        w = math.exp(u)
        density = math.exp(float(prior.log_prob(torch.tensor(w, dtype=torch.float64))) + u)
        return density * (likelihood(w, signed) + likelihood(-w, signed))

    ends = [low, *(cut for cut in (_FLAT, 0.0) if low < cut < end), end]
    inner = [ends[0] * (1 - 1e-15), *ends[1:-1], ends[-1] * (1 - 1e-15)]  # within the support after rounding of exp
    return sum(quad(integrand, a, b, epsabs=0, epsrel=1e-9, limit=200)[0] for a, b in itertools.pairwise(inner))


def unnormalised(signed: Sequence[float], low: float, high: float) -> float:
    """Z(low, high), the evidence under the prior 1 / |w| restricted to low <= ln |w| <= high."""
    return 2 * (high - low) * evidence(signed, low, high)


def near_zero(signed: Sequence[float], low: float, high: float, radius: float) -> float:
    """Posterior probability of |w| < radius under `TruncatedLogUniform(low, high)`."""
    return evidence(signed, low, high, below=math.log(radius)) / evidence(signed, low, high)


def near_zero_gaussian(signed: Sequence[float], scale: float, radius: float) -> float:
    """Posterior probability of |w| < radius under the prior N(0, scale^2)."""

    def integrand(w: float) -> float:
        return likelihood(w, signed) * math.exp(-((w / scale) ** 2) / 2)

    inside = quad(integrand, -radius, radius, epsrel=1e-10)[0]
    return float(inside / quad(integrand, -12 * scale, 12 * scale, epsrel=1e-10, points=[0.0], limit=200)[0])


def variational(signed: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the Gaussian N(m, alpha m^2) of variational dropout: its objective does exist.

    It maximises E[ln L(w)] - KL(alpha), where the KL divergence from the improper prior is known up to a constant
    (`pyrodrop.divergences.log_uniform_kl`).
    """
    from scipy.optimize import minimize

    from pyrodrop.divergences import log_uniform_kl

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def loss(values: np.ndarray) -> float:
        m, log_alpha = values
        w = m * (1 + math.exp(log_alpha / 2) * nodes)
        fit = float(weights @ log_expit(np.outer(w, signed)).sum(1))
        return float(log_uniform_kl(torch.tensor(log_alpha, dtype=torch.float64))) - fit

    best = minimize(loss, np.array([1.0, -1.0]), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    m, log_alpha = best.x
    return float(m), abs(float(m)) * math.exp(log_alpha / 2)


def slope_at_zero(signed: Sequence[float]) -> float:
    """2 L(0), by which Z grows per unit of ln(1 / eps)."""
    return 2 * float(expit(0.0)) ** len(signed)
