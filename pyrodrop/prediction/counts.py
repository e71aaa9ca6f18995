"""Cumulative distribution functions computed with SciPy, and quantiles of mixtures of counts.

    F(k) = mean_t P(Y <= k | f_t),   the q-quantile is the smallest whole number k with F(k) >= q

    Student's t             F(y) and its inverse
    Poisson(m)              F(k) = Q(k + 1, m)
    negative binomial       F(k) = I_{1-p}(r, k + 1)              p the probability of a success, k their number
    gamma-Poisson(a, b)     negative binomial with r = a, p = 1 / (1 + b)
    geometric(s)            negative binomial with r = 1, p = 1 - s
    binomial(n, p)          F(k) = I_{1-p}(n - k, k + 1)
    beta(a, b)              F(y) = I_y(a, b)
    gamma(a, b)             F(y) = P(a, b y), of which only the inverse is computed here

with the regularised incomplete gamma functions P and Q and beta function I. Their error is 1e-15 for counts of a million.
https://dlmf.nist.gov/8.17, https://dlmf.nist.gov/8.4.E10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import scipy  # which imports scipy.special when it is first used
import torch
from torch import Tensor
from torch import distributions as td

from pyrodrop.likelihoods import precise

_CLOSE, _EPS = 1e-12, 4e-16  # relative and absolute error of the probabilities, so that F(k) = q is not missed
_FAR = 1e100  # quantiles of Student's t further out, in scales, count as infinite, as SciPy's search ends there
_MANY = 1e60  # n of a binomial that replaces a Poisson; it changes P(Y > k) by a factor of about 1 + k^2 / n
_MOST = 2**53  # above it, float64 has no odd numbers

Cdf = Callable[[Any], Any]
"""P(Y <= k) of every component."""

STUDENT = (td.StudentT, dist.StudentT)  # a subclass may be another distribution
_BETA, _GAMMA = (td.Beta, dist.Beta, precise.Beta), (td.Gamma, dist.Gamma, precise.Gamma)
_COUNTS = {
    td.Poisson, dist.Poisson, td.NegativeBinomial, dist.NegativeBinomial, dist.GammaPoisson, td.Geometric, dist.Geometric,
    td.Binomial, dist.Binomial, td.Bernoulli, dist.Bernoulli,
    precise.Poisson, precise.NegativeBinomial,
}  # fmt: skip


def is_count(distribution: Any) -> bool:
    """Whether `count_quantiles` supports the distribution. Subclasses are not included: they may be other distributions."""
    return type(distribution) in _COUNTS


def scipy_cdf(distribution: Any, y: Tensor) -> Tensor | None:
    """P(Y <= y) of every component, where PyTorch does not have it: Student's t, beta, counts; None for others."""
    if type(distribution) not in STUDENT + _BETA and not is_count(distribution):
        return None
    value = y.detach().cpu().double().numpy()
    if type(distribution) in STUDENT:
        df, loc, scale = _arrays(distribution.df, distribution.loc, distribution.scale)
        probabilities = scipy.special.stdtr(df, (value - loc) / scale)
    elif type(distribution) in _BETA:
        probabilities = scipy.special.betainc(*_arrays(distribution.concentration1, distribution.concentration0), value)
    else:
        probabilities = _cdf_of(distribution)(np.floor(value))
    like = distribution.mean
    return torch.as_tensor(probabilities, device=like.device).to(like.dtype)


def scipy_icdf(distribution: Any, q: float) -> Tensor | None:
    """The q-quantile of every component, where PyTorch does not have it: gamma, beta, Student's t; None for others."""
    if type(distribution) in _GAMMA:
        concentration, rate = _arrays(distribution.concentration, distribution.rate)
        quantiles = scipy.special.gammaincinv(concentration, q) / rate
    elif type(distribution) in STUDENT:
        df, loc, scale = _arrays(distribution.df, distribution.loc, distribution.scale)
        z = scipy.special.stdtrit(df, q)
        quantiles = loc + scale * np.where(np.abs(z) < _FAR, z, np.inf)
    elif type(distribution) in _BETA:
        quantiles = scipy.special.betaincinv(*_arrays(distribution.concentration1, distribution.concentration0), q)
    else:
        return None
    return torch.as_tensor(quantiles, device=distribution.mean.device)


def count_quantiles(distribution: Any, q: Tensor) -> Tensor:
    """Quantiles of the equal mixture of the distributions along the first axis of ``[T, n]``: ``[Q, n]``, int64.

    Raises:
        ValueError: a quantile is above 2^53.
    """
    cdf = _cdf_of(distribution)
    quantiles = np.stack([_smallest(cdf, float(level), distribution.batch_shape[1]) for level in q])
    return torch.from_numpy(quantiles).to(distribution.mean.device, torch.int64)


def _smallest(cdf: Cdf, q: float, size: int) -> np.ndarray[Any, Any]:
    """The smallest k with F(k) >= q, by doubling and halving."""

    def reaches(k: Any) -> Any:
        return cdf(k).mean(0) >= q - max(_CLOSE * min(q, 1 - q), _EPS)

    low, high = np.full(size, -1.0), np.zeros(size)
    below = ~reaches(high)
    while below.any():
        low, high = np.where(below, high, low), np.where(below, 2 * high + 1, high)
        if high.max() > _MOST:
            raise ValueError(f"quantiles of counts must be at most 2^53 to be exact; got a larger one for q={q:g}")
        below = ~reaches(high)
    while (high - low > 1).any():
        middle = np.where(high - low > 1, np.floor((low + high) / 2), high)
        enough = reaches(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _cdf_of(distribution: Any) -> Cdf:
    """The cumulative distribution function of a distribution of counts."""
    if isinstance(distribution, td.Poisson):
        (mean,) = _arrays(distribution.rate)
        # SciPy's gammaincc is wrong for a mean above 3e5 and k more than 4.5 sd above it; binomial(n, m / n) is the same
        beta, gamma = scipy.special.betainc, scipy.special.gammaincc
        return lambda k: np.where(k > mean, 1 - beta(k + 1, _MANY, mean / _MANY), gamma(k + 1, mean))
    if isinstance(distribution, td.Binomial | td.Bernoulli):
        _, rest = _probabilities(distribution)
        (n,) = _arrays(distribution.total_count) if isinstance(distribution, td.Binomial) else [1.0]
        return lambda k: np.where(k < n, scipy.special.betainc(np.maximum(n - k, 1), k + 1, rest), 1.0)
    if isinstance(distribution, dist.GammaPoisson):
        r, rate = _arrays(distribution.concentration, distribution.rate)
        rest = rate / (1 + rate)
    elif isinstance(distribution, td.Geometric):
        (rest, _), r = _probabilities(distribution), np.ones(())
    else:
        (_, rest), (r,) = _probabilities(distribution), _arrays(distribution.total_count)
    return lambda k: np.where(r > 0, scipy.special.betainc(np.where(r > 0, r, 1.0), k + 1, rest), 1.0)


def _probabilities(distribution: Any) -> tuple[Any, Any]:
    """p and 1 - p, both with all their digits."""
    if "probs" in vars(distribution):
        (p,) = _arrays(distribution.probs)
        return p, 1 - p
    p, rest = _arrays(torch.sigmoid(distribution.logits), torch.sigmoid(-distribution.logits))
    return p, rest


def _arrays(*parameters: Tensor) -> list[Any]:
    return [value.detach().cpu().double().numpy() for value in parameters]
