"""Quantiles of a predictive mixture, by root finding.

    F(y) = mean_t P(Y <= y | f_t) = q        every element of y separately

Between the smallest and the largest q-quantile of the components F passes through q. In this interval Newton's method is
used. Where its step would leave the interval, or the last step did not halve the error, the interval is halved. Quantiles
of counts are whole numbers (`counts`). The result is exact for the mixture over the draws t: nothing is sampled, and noise
of the observations is included.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from pyrodrop.arguments import real, shown
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.likelihoods.shapes import elements, support_of
from pyrodrop.prediction.counts import count_quantiles, is_count, scipy_cdf, scipy_icdf

_STEPS, _FEW = 240, 60  # at most; after 60 steps every third halves the interval, and about 60 halvings suffice
_AT_A_TIME = 2**20  # values of draws that are processed at a time
_CLOSE = 1e-12  # tolerance of the probability F, relative to the smaller of q and 1 - q
_TAIL = 1e-9  # least q and 1 - q, as probabilities have an error of 1e-16
_EPS = torch.finfo(torch.float64).eps


def checked_levels(q: Any, name: str = "q") -> Tensor:
    """Probabilities in (0, 1) as float64, ``[]`` for a number or ``[Q]`` for a list or vector of them."""
    what = "the probability of the values below a quantile, a number or a list of numbers,"
    if (
        isinstance(q, Iterable)
        and not isinstance(q, str | bytes | dict)
        and not (isinstance(q, Tensor) and q.dim() == 0)
    ):
        levels = [real(level, name, what, above=0, below=1) for level in q]
        if not levels:
            raise ValueError(f"{name} is {what} and must have at least one; got {shown(q)} without any")
        return torch.tensor(levels, dtype=torch.float64)
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
        ValueError: the predictions are not finite, or a quantile is too large for float64; q is nearer to 0 or 1 than 1e-9.
    """
    of_element: Any = elements(distribution)
    shape = of_element.batch_shape
    if isinstance(of_element, Categorical):
        raise TypeError(
            "quantiles need real observations; got class labels, which have no order: the probabilities of classes are "
            "Prediction.mean, and of='f' gives quantiles of the logits"
        )
    support = support_of(of_element)
    counts = is_count(of_element) if support is not None and support.is_discrete else False
    if of_element.event_shape or support is None or (support.is_discrete and not counts):
        raise TypeError(
            "quantiles need observations with one known cumulative distribution function each; got "
            f"{type(of_element).__name__}: take quantiles of Prediction.sample_y instead"
        )
    try:
        of_element = rebuilt(lambda value: _finite(value.detach().double()).flatten(1, len(shape) - 1), of_element)
        if not counts:
            cdf(of_element, _icdf(of_element, torch.tensor(0.5, dtype=torch.float64))[0])
    except (NotImplementedError, TypeError):
        raise TypeError(
            "quantiles need a distribution of y whose cumulative distribution function and its inverse are known; got "
            f"{type(of_element).__name__}: take quantiles of Prediction.sample_y instead"
        ) from None
    beyond = float(torch.minimum(q, 1 - q).min())
    if beyond < _TAIL:
        raise ValueError(
            f"q must be at least {_TAIL:g} from 0 and 1, further out than which probabilities are rounded too much; got "
            f"{beyond:g} from one of them"
        )
    width = max(1, _AT_A_TIME // shape[0])
    columns = of_element.batch_shape[1]
    blocks = []
    for first in range(0, columns, width):
        block = rebuilt(lambda value, first=first: value[:, first : first + width], of_element)  # type: ignore[misc]
        blocks.append(count_quantiles(block, q) if counts else torch.stack([_root(block, float(level)) for level in q]))
    return torch.cat(blocks, 1).reshape(len(q), *shape[1:])


def _root(distribution: Any, q: float) -> Tensor:
    """The q-quantile of the mixture along the first axis of ``[T, n]``, ``[n]``."""
    ends = _icdf(distribution, torch.tensor(q, dtype=torch.float64))
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


def cdf(distribution: Any, y: Tensor) -> Tensor:
    """P(Y <= y) under a distribution of single numbers; a NotImplementedError if it is not known."""
    probabilities = scipy_cdf(distribution, y)
    return distribution.cdf(y) if probabilities is None else probabilities  # type: ignore[no-any-return]


def _icdf(distribution: Any, q: Tensor) -> Tensor:
    """The q-quantile of every component; a NotImplementedError if it is not known."""
    if isinstance(distribution, MixtureSameFamily):
        return _icdf(distribution.component_distribution, q).movedim(-1, 0).flatten(0, 1)
    quantiles = scipy_icdf(distribution, float(q))
    return distribution.icdf(q) if quantiles is None else quantiles  # type: ignore[no-any-return]


def _finite(parameter: Tensor) -> Tensor:
    if not bool(parameter.isfinite().all()):
        raise ValueError("quantiles need finite predictions; got NaN or infinite ones")
    return parameter


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
    return quantiles_over_draws(f, q)


def quantiles_over_draws(f: Tensor, q: Tensor) -> Tensor:
    """`draw_quantiles` without a check of q; `torch.quantile` takes at most 2^24 values at a time."""
    width = max(1, _AT_A_TIME // len(f))
    blocks = [torch.quantile(block.double(), q.to(f.device), dim=0) for block in f.flatten(1).split(width, 1)]
    return torch.cat(blocks, 1).reshape(len(q), *f.shape[1:])
