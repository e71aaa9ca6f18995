"""The first two moments of a prediction, computed in one pass.

    E[y]   = mean_t E[y | f_t]
    Var[y] = mean_t Var[y | f_t] + var_t E[y | f_t]

Samples arrive in chunks; the means m and sums of squared deviations S of two chunks are merged without a raw sum of squares:

    d = m_b - m_a      m = m_a + d n_b / n      S = S_a + S_b + d^2 n_a n_b / n      n = n_a + n_b

Chan, Golub & LeVeque (1983), Algorithms for Computing the Sample Variance, eq. 2.1,
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
        num_samples: S, number of sampled functions; None for a closed form.
        joint: True if all points share the same sampled functions, False if every point has independent samples. The
            marginal distribution of a point is the same, with the exceptions listed in `Prediction`; with False the Monte
            Carlo errors of two points are independent.
    """

    mean: Tensor
    variance: Tensor
    spread: Tensor
    num_samples: int | None
    joint: bool = True

    def card(self) -> Card:
        """The summary that is printed."""
        draws = "in closed form" if self.num_samples is None else f"of {self.num_samples} functions"
        return Card(f"Moments at {len(self.mean)} points", {"mean, variance": size(self.mean), "computed": draws})

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
        self._running: tuple[Running, Running, Running] | None = None  # of E[y | f], Var[y | f] and f

    def add(self, first: int, distribution: Distribution, f: Tensor) -> None:
        """Add t samples at n points.

        Args:
            first: index of the first point.
            distribution: distribution of y given each sample, batch shape ``[t, n]``.
            f: the function, ``[t, n, ...]``.
        """
        mean, variance = component_moments(distribution)
        if self._running is None:
            n = self.num_points
            self._running = Running(n, mean), Running(n, variance), Running(n, f)
        means, variances, functions = self._running
        of_mean = centred(mean)
        means.add(first, len(mean), *of_mean)
        variances.add(first, len(mean), variance.mean(0))
        functions.add(first, len(mean), *(of_mean if torch.equal(f, mean) else centred(f)))

    def result(self, like: Tensor, *, joint: bool) -> Moments:
        """The moments, with the dtype and device of `like`."""
        assert self._running is not None
        means, variances, functions = self._running
        return Moments(
            mean=means.mean.to(like),
            variance=(means.variance + variances.mean).to(like),
            spread=functions.variance.sqrt().to(like),
            num_samples=int(means.count[0]),
            joint=joint,
        )


class Running:
    """Mean m and sum of squared deviations S over samples, for N points.

    Args:
        num_points: N.
        like: a tensor ``[t, n, ...]`` with the trailing shape and device of the samples.
    """

    def __init__(self, num_points: int, like: Tensor) -> None:
        self.mean: Tensor = torch.zeros((num_points, *like.shape[2:]), dtype=torch.float64, device=like.device)
        self.squares: Tensor = torch.zeros_like(self.mean)
        self.count: Tensor = torch.zeros(
            (num_points, *(1,) * (like.dim() - 2)), dtype=torch.float64, device=like.device
        )

    def add(self, first: int, count: int, mean: Tensor, squares: Tensor | float = 0.0) -> None:
        """Merge the m and S of `count` samples at the points from index `first` on."""
        points = slice(first, first + len(mean))
        before, total = self.count[points], self.count[points] + count
        shift = mean - self.mean[points]
        self.mean[points] += shift * (count / total)
        self.squares[points] += squares + shift**2 * (before * count / total)
        self.count[points] = total

    @property
    def variance(self) -> Tensor:
        """S divided by the number of samples."""
        return self.squares / self.count


def centred(draws: Tensor) -> tuple[Tensor, Tensor]:
    """m and S of samples ``[t, n, ...]`` over the first axis, each ``[n, ...]``."""
    mean = draws.mean(0)
    return mean.double(), torch.linalg.vector_norm(draws - mean, dim=0).double() ** 2


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
