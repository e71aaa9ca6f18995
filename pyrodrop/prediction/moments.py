"""The first two moments of a prediction, computed in one pass.

    E[y]   = mean_t E[y | f_t]
    Var[y] = mean_t Var[y | f_t] + var_t E[y | f_t]

Samples arrive in chunks. Sums and sums of squares are of differences from a constant c, the mean of a point's first chunk,
so that no digits cancel: Chan, Golub & LeVeque (1983), Algorithms for Computing the Sample Variance, section 3,
https://doi.org/10.1080/00031305.1983.10483115. For class labels y is the vector of class indicators, so that E[y] is the
mean probability of each class and Var[y] = E[y] (1 - E[y]).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from pyrodrop.cards import Card, carded, size
from pyrodrop.likelihoods import elements


@carded
@dataclass(frozen=True, repr=False)
class Moments:
    """Mean and variance of a prediction at N points, in the units of y.

    Attributes:
        mean: E[y], of the shape of y, ``[N, ...]``; class probabilities ``[N, ..., classes]`` for a classifier.
        variance: Var[y], observation noise included, of the shape of the mean.
        spread: standard deviation of the function f without observation noise (of the logits for a classifier),
            ``[N, ...]``.
        num_samples: S, number of sampled functions.
    """

    mean: Tensor
    variance: Tensor
    spread: Tensor
    num_samples: int

    def card(self) -> Card:
        """The summary that is printed."""
        facts = {"mean, variance": size(self.mean), "computed": f"of {self.num_samples} functions"}
        return Card(f"Moments at {len(self.mean)} points", facts)

    @property
    def sd(self) -> Tensor:
        """Standard deviation of y, of the shape of the mean."""
        return self.variance.sqrt()


class RunningMoments:
    """Moments of N points from tiles of samples and points, accumulated in double precision.

    Args:
        num_points: N.
    """

    def __init__(self, num_points: int) -> None:
        self.num_points = num_points
        self._count = torch.zeros(num_points, dtype=torch.long)
        # of Var[y | f], of E[y | f], and of f unless it is that: c, the sum and the sum of squares, ``[3, N, ...]`` each
        self._sums: list[Tensor] = []

    def add(self, first: int, distribution: Distribution, f: Tensor) -> None:
        """Add t samples at n points.

        Args:
            first: index of the first point.
            distribution: distribution of y given each sample, batch shape ``[t, n]``.
            f: the function, ``[t, n, ...]``.
        """
        mean, variance = component_moments(distribution)
        values = [variance.mean(0, keepdim=True), mean]
        if len(self._sums) == 3 or not torch.equal(f, mean):
            values.append(f)
        if not self._sums:
            shapes = [(3, self.num_points, *value.shape[2:]) for value in values]
            self._sums = [torch.zeros(shape, dtype=torch.float64, device=f.device) for shape in shapes]
        elif len(values) > len(self._sums):
            self._sums.append(self._sums[1].clone())
        points = slice(first, first + f.shape[1])
        for value, sums in zip(values, self._sums, strict=True):
            constant, total, squares = sums[:, points]
            if not self._count[first]:
                constant.copy_(value.mean(0))
            beyond = value - constant.to(value)
            total += beyond.mean(0) * len(f)
            squares += torch.linalg.vector_norm(beyond, dim=0).double() ** 2
        self._count[points] += len(f)

    def result(self, like: Tensor) -> Moments:
        """The moments, with the dtype and device of `like`."""
        count = int(self._count[0])
        each = [
            (c + total / count, (squares / count - (total / count) ** 2).clamp_min(0))
            for c, total, squares in self._sums
        ]
        (noise, _), (mean, spread), (_, of_f) = *each[:2], each[-1]
        return Moments(
            mean=mean.to(like),
            variance=(spread + noise).to(like),
            spread=of_f.sqrt().to(like),
            num_samples=count,
        )


def component_moments(distribution: Distribution) -> tuple[Tensor, Tensor]:
    """E[y | f] and Var[y | f] per sample and point; for class labels, those of the class indicators.

    Raises:
        TypeError: the distribution has no closed-form mean or variance.
    """
    of_element = elements(distribution)
    if isinstance(of_element, Categorical):
        return of_element.probs, of_element.probs * (1 - of_element.probs)
    try:
        return distribution.mean, distribution.variance
    except NotImplementedError:
        raise TypeError(
            "mean and variance of a prediction need a likelihood with closed-form moments; "
            f"{type(of_element).__name__} has none: average samples of Prediction.sample_y instead"
        ) from None
