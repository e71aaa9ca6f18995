"""Quantiles of a predictive mixture, by root finding.

    F(y) = mean_t P(Y <= y | f_t) = q        every element of y separately

Between the smallest and the largest q-quantile of the components F passes through q. There Newton's method is followed, and
the interval is halved in every third step and where Newton's would leave it. Above 1/2 the quantiles of Gaussians and of
Student's t are those of -y at 1 - q, with no digits lost in the tail. Those of counts are whole numbers (`counts`). The
result is that of the draws t, exactly: nothing is sampled, and noise of the observations is included. Elements of an
observation have intervals of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyro.distributions
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal, StudentT

from pyrodrop.arguments import real, shown
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.likelihoods.shapes import elements, support_of

_STEPS = 240  # at most; a third of them are halvings, of which about 60 suffice
_AT_A_TIME = 2**20  # values of draws
_CLOSE = 1e-12  # how near the probability must come to q, relative to q or 1 - q
_TAIL = 1e-9  # of q and 1 - q, for other distributions than Gaussians: their 1 - q has an error of 1e-16
_STUDENT = (StudentT, pyro.distributions.StudentT)  # a subclass may be another distribution
_FAR = 1e150
_EPS = torch.finfo(torch.float64).eps


def checked_levels(q: Any, name: str = "q") -> Tensor:
    """Probabilities in (0, 1) as float64, ``[]`` for a number or ``[Q]`` for a list or vector of them."""
    what = "the probability of the values below a quantile, a number or a list of numbers,"
    if (
        isinstance(q, Iterable)
        and not isinstance(q, str | bytes | dict)
        and not (isinstance(q, Tensor) and q.dim() == 0)
    ):
        given = list(q)
        if not given:
            raise ValueError(f"{name} is {what} and must have at least one; got {shown(q)} without any")
        return torch.tensor([real(one, name, what, above=0, below=1) for one in given], dtype=torch.float64)
    return torch.tensor(real(q, name, what, above=0, below=1), dtype=torch.float64)


def mixture_quantiles(distribution: Distribution, q: Tensor) -> Tensor:
    """Quantiles of the equal mixture of the distributions along the first axis of ``[T, N, ...]``.

    Args:
        q: probabilities ``[Q]``, float64.

    Returns:
        ``[Q, N, ...]``, float64, or int64 for counts.

    Raises:
        TypeError: the components have no quantiles, or no cumulative distribution function or inverse of it is known for
            them.
        ValueError: the predictions are not finite, or a quantile is too large for float64; q is too near 0 or 1 for
            components of which PyTorch computes these functions.
    """
    one: Any = elements(distribution)
    shape = one.batch_shape
    if isinstance(one, Categorical):
        raise TypeError(
            "quantiles need real observations; got class labels, which have no order: the probabilities of classes are "
            "Prediction.mean, and of='f' gives quantiles of the logits"
        )
    support = support_of(one)
    counts = _is_count(one) if support is not None and support.is_discrete else False
    if one.event_shape or support is None or (support.is_discrete and not counts):
        raise TypeError(
            "quantiles need observations with one known cumulative distribution function each; got "
            f"{type(one).__name__}: take quantiles of Prediction.sample_y instead"
        )
    try:
        one = rebuilt(lambda value: _finite(value.detach().double()).expand(shape).flatten(1), one)
        if not counts and not _mirrored(one):
            cdf(one, _icdf(one, torch.tensor(0.5, dtype=torch.float64)))
    except (NotImplementedError, TypeError):
        raise TypeError(
            "quantiles need a distribution of y whose cumulative distribution function and its inverse are known; got "
            f"{type(one).__name__}: take quantiles of Prediction.sample_y instead"
        ) from None
    beyond = float(torch.minimum(q, 1 - q).min())
    if beyond < _TAIL and not counts and not _mirrored(one):
        raise ValueError(
            f"q must be at least {_TAIL:g} from 0 and 1 for a {type(one).__name__}, whose quantiles PyTorch rounds further "
            f"out; got {beyond:g} from one of them"
        )
    width = max(1, _AT_A_TIME // shape[0])
    columns = one.batch_shape[1]
    blocks = []
    for first in range(0, columns, width):
        block = rebuilt(lambda value, first=first: value[:, first : first + width], one)  # type: ignore[misc]
        blocks.append(_of_counts(block, q) if counts else torch.stack([_root(block, float(level)) for level in q]))
    return torch.cat(blocks, 1).reshape(len(q), *shape[1:])


def _root(distribution: Any, q: float) -> Tensor:
    """The q-quantile of the mixture along the first axis of ``[T, n]``, ``[n]``."""
    if isinstance(distribution, Normal) and q > 0.5:
        return -_root(Normal(-distribution.loc, distribution.scale, validate_args=False), 1 - q)
    if _mirrored(distribution) and q > 0.5:
        return -_root(StudentT(distribution.df, -distribution.loc, distribution.scale, validate_args=False), 1 - q)
    low, high = _extremes(distribution, torch.tensor(q, dtype=torch.float64))
    if not bool((low.isfinite() & high.isfinite()).all()):
        raise ValueError(f"quantiles must be finite; got infinite ones for q={q:g}")
    y = (low + high) / 2
    near = _CLOSE * q if _mirrored(distribution) else max(_CLOSE * min(q, 1 - q), 2 * _EPS)
    close = 2 * _EPS * torch.maximum(low.abs(), high.abs())
    for step in range(_STEPS):
        short = _cdf(distribution, y).mean(0) - q
        low, high = torch.where(short < 0, y, low), torch.where(short < 0, high, y)
        done = (short.abs() <= near) | (high - low <= close)
        if bool(done.all()):
            break
        newton = y - short / distribution.log_prob(y).exp().mean(0)
        inside = (newton > low) & (newton < high) & (step % 3 < 2)
        y = torch.where(done, y, torch.where(inside, newton, (low + high) / 2))
    return y


def _extremes(distribution: Any, q: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest q-quantile of the components; of Gaussians also where 2 q - 1 loses all digits. Of
    Student's t with q <= 1/2, whose inverse SciPy does not have far out, values that are below and above the mixture's."""
    if type(distribution) in _STUDENT:
        low = high = distribution.loc.amax(0)
        least, reach = distribution.loc.amin(0), distribution.scale.amax(0)
        while bool((above := _cdf(distribution, low).mean(0) > q).any()):
            low, high = torch.where(above, least - reach, low), torch.where(above, low, high)
            reach = 2 * reach
            if bool((reach > _FAR * distribution.scale.amax(0)).any()):
                raise ValueError(
                    f"q must be one whose quantile is within {_FAR:g} scales of loc for a StudentT, as float64 has no "
                    f"squares of larger numbers; got {float(q):g} from 0 or 1 with df={float(distribution.df.min()):g}"
                )
        return low, high
    ends = (
        distribution.loc + distribution.scale * torch.special.ndtri(q)
        if isinstance(distribution, Normal)
        else _icdf(distribution, q)
    )
    return ends.amin(0), ends.amax(0)


def _cdf(distribution: Any, y: Tensor) -> Tensor:
    """P(Y <= y) of every component; for a Gaussian also far out, where 1 + erf, as in PyTorch's ndtr, loses all digits."""
    if isinstance(distribution, Normal):
        return torch.special.erfc((distribution.loc - y) / (math.sqrt(2) * distribution.scale)) / 2
    return cdf(distribution, y)


def cdf(distribution: Any, y: Tensor) -> Tensor:
    """P(Y <= y) under a distribution of single numbers; a NotImplementedError if it is not known."""
    from pyrodrop.prediction.counts import scipy_cdf  # SciPy takes a while to import

    found = scipy_cdf(distribution, y)
    return distribution.cdf(y) if found is None else found  # type: ignore[no-any-return]


def _icdf(distribution: Any, q: Tensor) -> Tensor:
    """The q-quantile of every component; a NotImplementedError if it is not known."""
    from pyrodrop.prediction.counts import scipy_icdf

    found = scipy_icdf(distribution, float(q))
    return distribution.icdf(q) if found is None else found  # type: ignore[no-any-return]


def _finite(parameter: Tensor) -> Tensor:
    if not bool(parameter.isfinite().all()):
        raise ValueError("quantiles need finite predictions; got NaN or infinite ones")
    return parameter


def _mirrored(distribution: Any) -> bool:
    """Whether it is symmetric around its ``loc``, and `_cdf` has all digits below it."""
    return isinstance(distribution, Normal) or type(distribution) in _STUDENT


def _is_count(distribution: Any) -> bool:
    from pyrodrop.prediction.counts import is_count

    return is_count(distribution)


def _of_counts(distribution: Any, q: Tensor) -> Tensor:
    from pyrodrop.prediction.counts import count_quantiles

    return count_quantiles(distribution, q)


def draw_quantiles(f: Tensor, q: Tensor) -> Tensor:
    """Quantiles of draws ``[S, N, ...]`` along their first axis, with linear interpolation: ``[Q, N, ...]``, float64.

    Raises:
        ValueError: fewer than one draw is expected beyond a quantile.
    """
    beyond = float(torch.minimum(q, 1 - q).min()) * len(f)
    if beyond < 1:
        extreme = float(q[torch.minimum(q, 1 - q).argmin()])
        raise ValueError(
            f"q must have at least one draw of f beyond it, so that {extreme:g} needs {1 / min(extreme, 1 - extreme):.0f} "
            f"draws; got q={extreme:g} and {len(f)} draws"
        )
    width = max(1, _AT_A_TIME // len(f))
    parts = [torch.quantile(block.double(), q.to(f.device), dim=0) for block in f.flatten(1).split(width, 1)]
    return torch.cat(parts, 1).reshape(len(q), *f.shape[1:])
