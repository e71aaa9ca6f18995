"""The first two moments of a prediction, kept running.

    E[y]   = mean_t E[y | f_t]
    Var[y] = mean_t Var[y | f_t] + var_t E[y | f_t]

Draws come in chunks, and two chunks' means and sums of squared deviations are merged without a raw sum of squares:

    d = m_b - m_a      m = m_a + d n_b / n      S = S_a + S_b + d^2 n_a n_b / n      n = n_a + n_b

Chan, Golub & LeVeque (1983), Algorithms for Computing the Sample Variance, eq. 2.1. For class labels y is the indicator of
each class, so that E[y] are the mean probabilities and Var[y] = E[y] (1 - E[y]).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from pyrodrop.likelihoods import elements


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a prediction at N points, in the units of y.

    Attributes:
        mean: E[y], of the shape of y, ``[N, ...]``; class probabilities ``[N, ..., classes]`` for a classifier.
        variance: Var[y], observation noise included, of the shape of the mean.
        spread: standard deviation of the function f alone (of the logits for a classifier), ``[N, ...]``.
        num_samples: S, number of draws of functions; None for a closed form.
        joint: whether the draws were functions, the same at all points. False: every point had draws of its own. The
            distribution of a point alone is the same either way, as far as `Prediction.joint` says; False makes the errors
            of two points' moments independent.
    """

    mean: Tensor
    variance: Tensor
    spread: Tensor
    num_samples: int | None
    joint: bool = True

    @property
    def sd(self) -> Tensor:
        """Standard deviation of y, of the shape of the mean."""
        return self.variance.sqrt()


class RunningMoments:
    """Moments of N points from tiles of draws and points, in double precision between tiles.

    Args:
        num_points: N.
    """

    def __init__(self, num_points: int) -> None:
        self.num_points = num_points
        self._means: Running | None = None
        self._variances: Running | None = None
        self._functions: Running | None = None

    def add(self, first: int, law: Distribution, f: Tensor) -> None:
        """Take in some draws at the points from `first` on: the law of y ``[t, n]`` and the function ``[t, n, ...]``."""
        mean, variance = component_moments(law)
        if self._means is None or self._variances is None or self._functions is None:
            self._means, self._variances, self._functions = (
                Running(self.num_points, like) for like in (mean, variance, f)
            )
        of_mean = centred(mean)
        self._means.add(first, len(mean), *of_mean)
        self._variances.add(first, len(mean), variance.mean(0))
        self._functions.add(first, len(mean), *(of_mean if torch.equal(f, mean) else centred(f)))

    def result(self, like: Tensor, *, joint: bool) -> Moments:
        """The moments, of the dtype and device of `like`."""
        assert self._means is not None
        assert self._variances is not None
        assert self._functions is not None
        return Moments(
            mean=self._means.mean.to(like),
            variance=(self._means.variance + self._variances.mean).to(like),
            spread=self._functions.variance.sqrt().to(like),
            num_samples=int(self._means.count[0]),
            joint=joint,
        )


class Running:
    """Mean m and sum of squared deviations S over draws, for N points.

    Args:
        num_points: N.
        like: a tensor ``[draws, points, ...]`` of the kind to come.
    """

    def __init__(self, num_points: int, like: Tensor) -> None:
        self.mean = torch.zeros((num_points, *like.shape[2:]), dtype=torch.float64, device=like.device)
        self.squares = torch.zeros_like(self.mean)
        self.count = torch.zeros((num_points, *(1,) * (like.dim() - 2)), dtype=torch.float64, device=like.device)

    def add(self, first: int, count: int, mean: Tensor, squares: Tensor | float = 0.0) -> None:
        """Merge in m and S of `count` draws at the points from `first` on."""
        points = slice(first, first + len(mean))
        before, total = self.count[points], self.count[points] + count
        shift = mean - self.mean[points]
        self.mean[points] += shift * (count / total)
        self.squares[points] += squares + shift**2 * (before * count / total)
        self.count[points] = total

    @property
    def variance(self) -> Tensor:
        """S over the number of draws."""
        return self.squares / self.count


def centred(draws: Tensor) -> tuple[Tensor, Tensor]:
    """m and S of ``[t, n, ...]``, over its first axis."""
    mean = draws.mean(0)
    return mean.double(), torch.linalg.vector_norm(draws - mean, dim=0).double() ** 2


def component_moments(law: Distribution) -> tuple[Tensor, Tensor]:
    """E[y | f] and Var[y | f] per draw and point; of the classes' indicators for class labels.

    Raises:
        TypeError: a distribution that has no mean or variance in closed form.
    """
    one = elements(law)
    if isinstance(one, Categorical):
        probabilities = one.probs
        return probabilities, probabilities * (1 - probabilities)
    try:
        return law.mean, law.variance
    except NotImplementedError:
        raise TypeError(
            f"mean and variance of a prediction are those of its likelihood's distribution; {type(one).__name__} has none "
            "in closed form: average draws of Prediction.sample_y instead"
        ) from None
