"""Total variation distance between two predictive distributions of y, at every point.

    classes    TV(p, q) = 1/2 sum_c |p(c) - q(c)|
    real y     TV(p, q) = 1/2 int |p(y) - q(y)| dy
                        = 1/2 sum_i |P(cell i) - Q(cell i)|  in the limit of small cells

p and q are the mixtures over samples of f, so noise is included. TV is the largest difference of the probabilities of any
event: 0 for equal distributions, 1 for distributions on disjoint sets. Wilson et al. (2022), Evaluating Approximate
Inference in Bayesian Deep Learning, https://proceedings.mlr.press/v176/wilson22a.html, use it for classes.

For real y the sum is a lower bound for any cells, and exact in every cell in which p - q does not change its sign. Cells are
1/8 of the scale s of the narrowest component (of its standard deviation, for Gaussian noise). A cell of width h in which the
sign changes misses at most h^2 |p' - q'| / 8. For Gaussian noise |p'| <= 0.242 / s^2 for every component, so that it misses
at most 0.001.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Laplace, Normal

from pyrodrop.likelihoods import elements
from pyrodrop.prediction.prediction import Prediction

_FINE = 8  # cells per scale of a component
_TAIL = 8.0  # scales beyond the outermost locations, where a Gaussian has a probability of 1e-15, a Laplace of 3e-4
_MOST_CELLS = 2**14
_NUMBERS = 2**22  # double-precision values processed at a time


def total_variation(p_of_y: Prediction, other: Prediction) -> Tensor:
    """TV of the distributions of y at every point, ``[N, ...]`` in float64, one per element of y.

    Raises:
        TypeError: y are neither classes nor real numbers with Normal or Laplace noise.
        ValueError: the predictions have different shapes, or one is of classes and the other is not.
    """
    p, q = class_probabilities(p_of_y), class_probabilities(other)
    if p is not None and q is not None and p.shape == q.shape:
        return (p - q).abs().sum(-1) / 2
    distributions = [elements(p.distribution) for p in (p_of_y, other)]
    shapes = [tuple(p.distribution.batch_shape[1:] + p.distribution.event_shape) for p in (p_of_y, other)]
    if shapes[0] != shapes[1] or p is not None or q is not None:
        got = [f"{type(d).__name__} of shape {list(shape)}" for d, shape in zip(distributions, shapes, strict=True)]
        raise ValueError(
            f"total variation needs two predictions of the same kind of y at the same points; got {' and '.join(got)}"
        )
    for distribution in distributions:
        if not isinstance(distribution, Normal | Laplace):
            raise TypeError(
                "total variation needs classes, or real y with Normal or Laplace noise; "
                f"{type(distribution).__name__} is neither"
            )
    return _over_cells(distributions[0], distributions[1]).reshape(shapes[0])


def class_probabilities(prediction: Prediction) -> Tensor | None:
    """Mean probability of every class, ``[N, ..., classes]`` in float64; None if y are not classes."""
    distribution = elements(prediction.distribution)
    if isinstance(distribution, Categorical):
        return distribution.probs.mean(0, dtype=torch.float64)
    if isinstance(distribution, Bernoulli):
        probability = distribution.probs.mean(0, dtype=torch.float64)
        return torch.stack((1 - probability, probability), -1)
    return None


def coarse_points(one: Prediction, other: Prediction) -> int:
    """Number of points whose cells had to be coarser, because noise is less than 1/2000 of the range of f."""
    distributions = elements(one.distribution), elements(other.distribution)
    if not all(isinstance(distribution, Normal | Laplace) for distribution in distributions):
        return 0
    return int((_range(*distributions)[2] > _MOST_CELLS).sum())


def _over_cells(p: Distribution, q: Distribution) -> Tensor:
    """TV at all M points, ``[M]``, in groups of points with similar numbers of cells."""
    low, high, wanted = _range(p, q)
    order = wanted.argsort(descending=True)
    cells = wanted[order].clamp(max=_MOST_CELLS).long()
    distances = torch.empty_like(low)
    first = 0
    while first < len(order):
        count = int(cells[first])  # the largest number of cells among the remaining points
        size = max(1, _NUMBERS // (count * max(len(p.loc), len(q.loc))))  # type: ignore[attr-defined]
        group = order[first : first + size]
        width = (high - low)[group] / count
        distances[group] = (
            _masses(p, group, low[group], width, count) - _masses(q, group, low[group], width, count)
        ).abs().sum(0) / 2
        first += size
    return distances


def _range(p: Distribution, q: Distribution) -> tuple[Tensor, Tensor, Tensor]:
    """Ends of the range of cells at each of M points, and the number of cells needed there; ``[M]`` each, float64."""
    (loc, scale), (its_loc, its_scale) = _components(p), _components(q)
    low = torch.minimum((loc - _TAIL * scale).amin(0), (its_loc - _TAIL * its_scale).amin(0))
    high = torch.maximum((loc + _TAIL * scale).amax(0), (its_loc + _TAIL * its_scale).amax(0))
    narrowest = torch.minimum(scale.amin(0), its_scale.amin(0))
    return low, high, ((high - low) * _FINE / narrowest).ceil()


def _components(distribution: Distribution) -> tuple[Tensor, Tensor]:
    """Locations and scales of the components at all points, each ``[T, M]``."""
    return distribution.loc.double().flatten(1), distribution.scale.double().flatten(1)  # type: ignore[attr-defined]


def _masses(distribution: Distribution, points: Tensor, low: Tensor, width: Tensor, count: int) -> Tensor:
    """The mixture's probability of every cell at some points, ``[cells, points]``, in chunks of components.

    A Gaussian component is evaluated only on the cells within `_TAIL` of its scales, which are few if f varies widely.
    """
    family = Normal if isinstance(distribution, Normal) else Laplace
    loc, scale = (parameters[:, points] for parameters in _components(distribution))
    near = int((2 * _TAIL * scale / width).max().ceil()) + 1 if family is Normal else count
    cells = torch.arange(min(near, count) + 1, device=low.device)[:, None, None]
    total = torch.zeros(count, len(points), dtype=low.dtype, device=low.device)
    chunk = max(1, _NUMBERS // (len(cells) * len(points)))
    for some, its in zip(loc.split(chunk), scale.split(chunk), strict=True):
        start = ((some - _TAIL * its - low) / width).long().clamp(0, count + 1 - len(cells))
        cdf = family(some, its, validate_args=False).cdf(low + width * (start + cells))
        total.scatter_add_(0, (start + cells[:-1]).flatten(0, 1), cdf.diff(dim=0).flatten(0, 1))
    return total / len(loc)
