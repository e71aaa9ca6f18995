"""Prediction: draws of functions and the mixture that they make.

    f_t = network(x; W_t),   W_t ~ q,   t = 1 ... S            [S, N, ...]
    p(y | x) = mean_t p(y | f_t)
    E[y]     = mean_t E[y | f_t]
    Var[y]   = mean_t Var[y | f_t] + mean_t E[y | f_t]^2 - E[y]^2

For a Gaussian likelihood these are Gal & Ghahramani's (2016) mean and variance, 1/tau + mean f_t^2 - (mean f_t)^2, where
the mean over t divides by S. One W_t serves all x, so draws are functions and joint over the points. Where only single
points matter, ``joint=False`` draws a noise for every point, by `reparam.LocalReparam`. The network is in evaluation mode.

Where only mean and variance are wanted, ``keep="moments"`` holds no draws: memory is that of the points, whatever S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.devices import seeded
from pyrodrop.likelihoods import elements
from pyrodrop.prediction.moments import component_moments


@dataclass(frozen=True)
class Prediction:
    """What a posterior says at N points, in the units of y.

    Attributes:
        f: draws of the function, ``[S, N, ...]``, logits for a classifier.
        law: the distribution of y at each component of the predictive mixture, batch shape ``[T, N]``. T = S for draws of
            networks, and 1 where the predictive distribution is known in closed form.
        seed: of the draws of y.
        f_sd: standard deviation of f where it is known in closed form, ``[N, ...]``.
        joint: whether f are draws of functions, so that what two points have in common can be read off them. False: every
            point had noise of its own, and only the marginal distribution of each point is right. Several rows of one
            point, such as tokens, then share their noise where it is that of input units (dropout, type A); where it is
            the weights' own (Gaussian posteriors, DropConnect) each row had its own, and only each row's marginal
            distribution is right. Weights of no linear map (embeddings), and those that are used several times, are drawn
            whole, for several points at once.
    """

    f: Tensor
    law: TorchDistribution
    seed: int = 0
    f_sd: Tensor | None = None
    joint: bool = True

    @property
    def mean(self) -> Tensor:
        """E[y], of the shape of y, ``[N, ...]``; for a classifier the classes' mean probabilities, ``[N, ..., classes]``.

        Raises:
            TypeError: the likelihood's distribution has no mean in closed form.
        """
        return component_moments(self.law)[0].mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y], observation noise included, ``[N, ...]``. The sum of squares is centred first: it cannot cancel."""
        mean, variance = component_moments(self.law)
        return variance.mean(0) + mean.var(0, correction=0)

    @property
    def sd(self) -> Tensor:
        """Standard deviation of y, ``[N, ...]``."""
        return self.variance.sqrt()

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the function alone, without observation noise, ``[N, ...]``."""
        return self.f.std(0, correction=0) if self.f_sd is None else self.f_sd

    @property
    def y(self) -> Tensor:
        """A draw of y for every draw of f, ``[S, N, ...]``; the same ones every time."""
        return self.sample_y(len(self.f))

    def sample_y(self, num_samples: int) -> Tensor:
        """Draws of y, ``[num_samples, N, ...]``, each component in turn."""
        components = self.law.batch_shape[0]
        rounds = math.ceil(num_samples / components)
        with seeded(self.seed, self.f.device), torch.no_grad():
            draws: Tensor = self.law.sample((rounds,))
        return draws.flatten(0, 1)[:num_samples]

    def log_density(self, y: Tensor) -> Tensor:
        """log p(y_n | x_n) under the mixture, ``[N]``, by a shift-stable log of the mean.

        An observation of several parts has one density, that of all its parts together under each draw.
        """
        y = self._aligned(y)
        return torch.logsumexp(self.law.log_prob(y), 0) - math.log(self.law.batch_shape[0])

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) under the mixture, for every number in y by itself: of the shape of y, ``[N, ...]``.

        Raises:
            TypeError: the likelihood's distribution has no cumulative distribution function, as class labels have none.
        """
        one = elements(self.law)
        try:
            return one.cdf(self._aligned(y)).mean(0)  # type: ignore[no-any-return]
        except NotImplementedError:
            raise TypeError(
                f"the cumulative distribution function is of real observations; {type(one).__name__} has none"
            ) from None

    def _aligned(self, y: Tensor) -> Tensor:
        """y with the shape of one component's draws; a ValueError rather than a broadcast if it has another."""
        want = self.law.batch_shape[1:] + self.law.event_shape
        if y.dim() == 1 and want == (len(y), 1):
            y = y[:, None]
        if y.shape != want:
            raise ValueError(f"y must have the shape of the prediction, {tuple(want)}; got {tuple(y.shape)}")
        if y.is_floating_point() and isinstance(elements(self.law), Categorical):
            raise ValueError(f"class labels are whole numbers of an integer dtype; got {y.dtype}")
        return y.to(self.f.device)


class Predicts(Protocol):
    """Anything that predicts: a fit, a Gaussian process."""

    def predict(self, x: Any, num_samples: int = ..., *, seed: int = ...) -> Prediction: ...
