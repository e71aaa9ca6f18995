"""Quantiles of a predictive mixture, by root finding.

    F(y) = mean_t P(Y <= y | f_t) = q        every element of y separately

Between the smallest and the largest q-quantile of the components F passes through q. In this interval Newton's method is
used. Where its step would leave the interval, or the last step did not halve the error, the interval is halved. The
quantile of a mixture of counts is the smallest whole number k with F(k) >= q, by doubling and halving. The result is exact
for the mixture over the draws t: nothing is sampled, and noise of the observations is included. From SciPy are:

    Student's t             F(y) and its inverse
    Poisson(m)              F(k) = Q(k + 1, m)
    negative binomial       F(k) = I_{1-p}(r, k + 1)              p the probability of a success, k their number

with the regularised incomplete gamma functions P and Q and beta function I. Their error is 1e-15 for counts of a million.
https://dlmf.nist.gov/8.17, https://dlmf.nist.gov/8.4.E10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyro.distributions as dist
import scipy  # which imports scipy.special when it is first used
import torch
from torch import Tensor
from torch import distributions as td

from pyrodrop.checks import real, shown
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.likelihoods import precise
from pyrodrop.likelihoods.shapes import elements, support_of

_STEPS, _FEW = 240, 60  # at most; after 60 steps every third halves the interval, and about 60 halvings suffice
_AT_A_TIME = 2**20  # values of draws that are processed at a time
_CLOSE = 1e-12  # tolerance of the probability F, relative to the smaller of q and 1 - q
_TAIL = 1e-9  # least q and 1 - q, as probabilities have an error of 1e-16
_EPS = torch.finfo(torch.float64).eps
_FAR = 1e100  # quantiles of Student's t further out, in scales, count as infinite, as SciPy's search ends there
_MANY = 1e60  # n of a binomial that replaces a Poisson; it changes P(Y > k) by a factor of about 1 + k^2 / n
_MOST = 2**53  # above it, float64 has no odd numbers

_STUDENT = (td.StudentT, dist.StudentT)  # exactly these: a subclass may be another distribution
_BERNOULLI = (td.Bernoulli, dist.Bernoulli)
_POISSON = (td.Poisson, dist.Poisson, precise.Poisson)
_NEGATIVE = (td.NegativeBinomial, dist.NegativeBinomial, precise.NegativeBinomial)
_COUNTS = (*_BERNOULLI, *_POISSON, *_NEGATIVE)
_Function = Callable[[Any], Any]


def checked_levels(q: Any, name: str = "q") -> Tensor:
    """Probabilities in (0, 1) as float64, ``[]`` for a number or ``[Q]`` for a list or vector of them."""
    what = "the probability of the values below a quantile, a number or a list of numbers,"
    one = not isinstance(q, Iterable) or isinstance(q, str | bytes | dict) or (isinstance(q, Tensor) and q.dim() == 0)
    levels = [real(level, name, what, above=0, below=1) for level in ([q] if one else q)]
    if not levels:
        raise ValueError(f"{name} is {what} and must have at least one; got {shown(q)} without any")
    return torch.tensor(levels[0] if one else levels, dtype=torch.float64)


def mixture_quantiles(distribution: td.Distribution, q: Tensor) -> Tensor:
    """Quantiles of the equal mixture of the distributions along the first axis of ``[T, N, ...]``.

    Args:
        q: probabilities ``[Q]``, float64.

    Returns:
        ``[Q, N, ...]``, float64, or int64 for counts.

    Raises:
        TypeError: no cumulative distribution function of the components, or no inverse of it, is known.
        ValueError: the predictions are not finite, or a quantile is too large for float64; q is nearer to 0 or 1 than 1e-9.
    """
    of_element: Any = elements(distribution)
    shape, name, counts = of_element.batch_shape, type(of_element).__name__, type(of_element) in _COUNTS
    try:
        support = support_of(of_element)
        if of_element.event_shape or support is None or (support.is_discrete and not counts):
            raise NotImplementedError
        of_element = rebuilt(lambda value: _finite(value.detach().double()).flatten(1, len(shape) - 1), of_element)
        if not counts:
            cdf(of_element, _icdf(of_element, 0.5)[0])
    except (NotImplementedError, TypeError):
        raise TypeError(
            "quantiles need a distribution of y whose cumulative distribution function and its inverse are known, as labels "
            f"have none; got {name}: take probabilities of Prediction.mean, or quantiles of Prediction.sample_y"
        ) from None
    beyond = float(torch.minimum(q, 1 - q).min())
    if beyond < _TAIL:
        raise ValueError(
            f"q must be at least {_TAIL:g} from 0 and 1, further out than which probabilities are rounded too much; got "
            f"{beyond:g} from one of them"
        )
    width, blocks = max(1, _AT_A_TIME // shape[0]), []
    for first in range(0, of_element.batch_shape[1], width):
        block = rebuilt(lambda value, first=first: value[:, first : first + width], of_element)  # type: ignore[misc]
        blocks.append(torch.stack([(_smallest if counts else _root)(block, float(level)) for level in q]))
    return torch.cat(blocks, 1).reshape(len(q), *shape[1:])


def _root(distribution: Any, q: float) -> Tensor:
    """The q-quantile of the mixture along the first axis of ``[T, n]``, ``[n]``."""
    ends = _icdf(distribution, q)
    low, high = ends.amin(0), ends.amax(0)
    if not bool((low.isfinite() & high.isfinite()).all()):
        raise ValueError(f"quantiles must be finite; got infinite ones for q={q:g}")
    y = (low + high) / 2
    near = max(_CLOSE * min(q, 1 - q), 2 * _EPS)
    close = 2 * _EPS * torch.maximum(low.abs(), high.abs())
    error = torch.full_like(y, torch.inf)
    for step in range(_STEPS):
        short = cdf(distribution, y).mean(0) - q
        low, high = torch.where(short < 0, y, low), torch.where(short < 0, high, y)
        done = (short.abs() <= near) | (high - low <= close)
        if bool(done.all()):
            break
        newton = y - short / distribution.log_prob(y).exp().mean(0)
        follow = short.abs() < error / 2 if step < _FEW else torch.full_like(done, step % 3 < 2)
        inside = (newton > low) & (newton < high) & follow
        error = short.abs()
        y = torch.where(done, y, torch.where(inside, newton, (low + high) / 2))
    return y


def _smallest(distribution: Any, q: float) -> Tensor:
    """The smallest k with F(k) >= q of the mixture of counts along the first axis of ``[T, n]``, int64 ``[n]``."""
    below = _of_counts(distribution)
    bound = q - max(_CLOSE * min(q, 1 - q), 2 * _EPS)  # so that F(k) = q is not missed
    low, high = np.full(distribution.batch_shape[1], -1.0), np.zeros(distribution.batch_shape[1])
    while (short := below(high).mean(0) < bound).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high + 1, high)
        if high.max() > _MOST:
            raise ValueError(f"quantiles of counts must be at most 2^53 to be exact; got a larger one for q={q:g}")
    while (high - low > 1).any():
        middle = np.where(high - low > 1, np.floor((low + high) / 2), high)
        short = below(middle).mean(0) < bound
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return torch.from_numpy(high).to(distribution.mean.device, torch.int64)


def cdf(distribution: Any, y: Tensor) -> Tensor:
    """P(Y <= y) under a distribution of single numbers; a NotImplementedError if it is not known."""
    below, _ = _by_scipy(distribution)
    return distribution.cdf(y) if below is None else torch.as_tensor(below(_array(y))).to(distribution.mean)  # type: ignore[no-any-return]


def _icdf(distribution: Any, q: float) -> Tensor:
    """The q-quantile of every component; a NotImplementedError if it is not known."""
    _, inverse = _by_scipy(distribution)
    if inverse is None:
        return distribution.icdf(torch.tensor(q, dtype=torch.float64))  # type: ignore[no-any-return]
    return torch.as_tensor(inverse(q), device=distribution.mean.device)


def _by_scipy(distribution: Any) -> tuple[_Function | None, _Function | None]:
    """P(Y <= y) of every component and its inverse where PyTorch does not have it; of counts only the first."""
    d, kind, of = distribution, type(distribution), scipy.special
    if kind in _STUDENT:
        df, loc, scale = map(_array, (d.df, d.loc, d.scale))

        def inverse(q: float) -> Any:
            z = of.stdtrit(df, q)
            return loc + scale * np.where(np.abs(z) < _FAR, z, np.inf)

        return lambda y: of.stdtr(df, (y - loc) / scale), inverse
    if kind in _COUNTS:
        below = _of_counts(d)
        return lambda y: below(np.floor(y)), None
    return None, None


def _of_counts(d: Any) -> _Function:
    """The cumulative distribution function of a distribution of counts, at whole numbers."""
    kind, gamma, beta = type(d), scipy.special.gammaincc, scipy.special.betainc
    if kind in _POISSON:
        m = _array(d.rate)
        # SciPy's gammaincc is wrong for a mean above 3e5 and k more than 4.5 sd above it; binomial(n, m / n) is the same
        return lambda k: np.where(k > m, 1 - beta(k + 1, _MANY, m / _MANY), gamma(k + 1, m))
    rest = _array(1 - d.probs if "probs" in vars(d) else torch.sigmoid(-d.logits))
    if kind in _BERNOULLI:
        return lambda k: np.where(k < 1, rest, 1.0)
    r = _array(d.total_count)
    return lambda k: np.where(r > 0, beta(np.where(r > 0, r, 1.0), k + 1, rest), 1.0)  # all mass is at 0 for r = 0


def _array(parameter: Tensor) -> Any:
    return parameter.detach().cpu().double().numpy()


def _finite(parameter: Tensor) -> Tensor:
    if not bool(parameter.isfinite().all()):
        raise ValueError("quantiles need finite predictions; got NaN or infinite ones")
    return parameter


def quantiles_over_draws(f: Tensor, q: Tensor) -> Tensor:
    """Quantiles of draws ``[S, N, ...]`` along their first axis, with linear interpolation: ``[Q, N, ...]``, float64.

    `torch.quantile` takes at most 2^24 values at a time.
    """
    width = max(1, _AT_A_TIME // len(f))
    blocks = [torch.quantile(block.double(), q.to(f.device), dim=0) for block in f.flatten(1).split(width, 1)]
    return torch.cat(blocks, 1).reshape(len(q), *f.shape[1:])
