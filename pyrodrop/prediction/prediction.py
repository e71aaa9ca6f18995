"""The result of a prediction: sampled functions and their predictive mixture.

    f_t = network(x; W_t),   W_t ~ q,   t = 1 ... S            [S, N, ...]
    p(y | x) = mean_t p(y | f_t)
    E[y]     = mean_t E[y | f_t]
    Var[y]   = mean_t Var[y | f_t] + mean_t E[y | f_t]^2 - E[y]^2

For a Gaussian likelihood these are the mean and variance of Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142:
1/tau + mean f_t^2 - (mean f_t)^2, where the mean over t divides by S. All x share one W_t, so samples are functions, joint
over the points. If only the marginal of each point is needed, ``joint=False`` samples noise independently per point
(`reparam.LocalReparam`). The network is in evaluation mode.

If only mean and variance are needed, ``keep="moments"`` does not store the samples; its memory does not depend on S.
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
    """The predictive distribution at N points, in the units of y.

    Attributes:
        f: samples of the function, ``[S, N, ...]``; logits for a classifier.
        law: the distribution of y for each component of the predictive mixture, batch shape ``[T, N]``. T = S for sampled
            networks, and T = 1 if the predictive distribution is known in closed form.
        seed: seed of the samples of y.
        f_sd: standard deviation of f, ``[N, ...]``, if it is known in closed form; otherwise None.
        joint: whether f are samples of functions, from which the dependence between points can be estimated. If False, noise
            was sampled independently per point and only the marginal distribution of each point is correct.

    Note:
        f and the tensors of the law may share memory: copy f before you change it in place.

        With ``joint=False``, several rows of one point, such as tokens, share noise on input units (dropout, type A). Noise
        on the weights themselves (Gaussian posteriors, DropConnect) is independent per row, so that only the marginal
        distribution of each row is correct. Weights that are not used in a linear map (embeddings) or are used several
        times are sampled as a whole and shared by several points.
    """

    f: Tensor
    law: TorchDistribution
    seed: int = 0
    f_sd: Tensor | None = None
    joint: bool = True

    @property
    def mean(self) -> Tensor:
        """E[y], ``[N, ...]`` like y; for a classifier the mean probability of each class, ``[N, ..., classes]``.

        Raises:
            TypeError: the likelihood's distribution has no closed-form mean or variance.
        """
        return component_moments(self.law)[0].mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y] including observation noise, ``[N, ...]``, computed from centred squares to avoid cancellation.

        Raises:
            TypeError: the likelihood's distribution has no closed-form mean or variance.
        """
        mean, variance = component_moments(self.law)
        return variance.mean(0) + mean.var(0, correction=0)

    @property
    def sd(self) -> Tensor:
        """Standard deviation of y, ``[N, ...]``."""
        return self.variance.sqrt()

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the function f, without observation noise, ``[N, ...]``."""
        return self.f.std(0, correction=0) if self.f_sd is None else self.f_sd

    @property
    def y(self) -> Tensor:
        """One sample of y per sample of f, ``[S, N, ...]``; the same samples at every access."""
        return self.sample_y(len(self.f))

    def sample_y(self, num_samples: int) -> Tensor:
        """Samples of y, ``[num_samples, N, ...]``, from the components of the mixture in turn, with the seed `seed`."""
        components = self.law.batch_shape[0]
        rounds = math.ceil(num_samples / components)
        with seeded(self.seed, self.f.device), torch.no_grad():
            draws: Tensor = self.law.sample((rounds,))
        return draws.flatten(0, 1)[:num_samples]

    def log_density(self, y: Tensor) -> Tensor:
        """log p(y_n | x_n) under the mixture, ``[N]``, computed with logsumexp.

        Args:
            y: observations ``[N, ...]``. An observation with several elements has one joint density.

        Raises:
            ValueError: y does not have the shape of the prediction, or class labels are not of an integer dtype.
        """
        y = self._aligned(y)
        return torch.logsumexp(self.law.log_prob(y), 0) - math.log(self.law.batch_shape[0])

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) under the mixture for every element of y separately, ``[N, ...]`` like y.

        Raises:
            ValueError: y does not have the shape of the prediction.
            TypeError: the likelihood's distribution has no cumulative distribution function, such as that of class labels.
        """
        one = elements(self.law)
        try:
            return one.cdf(self._aligned(y)).mean(0)  # type: ignore[no-any-return]
        except NotImplementedError:
            raise TypeError(
                f"cdf needs real observations with a cumulative distribution function; {type(one).__name__} has none"
            ) from None

    def _aligned(self, y: Tensor) -> Tensor:
        """y with the shape of one component's samples; raises a ValueError instead of broadcasting another shape."""
        want = self.law.batch_shape[1:] + self.law.event_shape
        if y.dim() == 1 and want == (len(y), 1):
            y = y[:, None]
        if y.shape != want:
            raise ValueError(f"y must have the shape of the prediction, {tuple(want)}; got {tuple(y.shape)}")
        if y.is_floating_point() and isinstance(elements(self.law), Categorical):
            raise ValueError(f"class labels are whole numbers of an integer dtype; got {y.dtype}")
        return y.to(self.f.device)


class Predicts(Protocol):
    """Objects with a method ``predict``: fits and Gaussian processes."""

    def predict(self, x: Any, num_samples: int = ..., *, seed: int = ...) -> Prediction: ...
