"""The result of a prediction: sampled functions and their predictive mixture.

    f_t = network(x; W_t),   W_t ~ q,   t = 1 ... S            [S, N, ...]
    p(y | x) = mean_t p(y | f_t)
    E[y]     = mean_t E[y | f_t]
    Var[y]   = mean_t Var[y | f_t] + mean_t E[y | f_t]^2 - E[y]^2

For a Gaussian likelihood these are the mean and variance of Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142:
1/tau + mean f_t^2 - (mean f_t)^2, where the mean over t divides by S. All x share one W_t, so samples are functions, joint
over the points. The network is in evaluation mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from pyrodrop.arrays import tensor_of, without_graph
from pyrodrop.checks import Count, Real, checked, shown
from pyrodrop.data.dataset import check_finite
from pyrodrop.devices import seeded
from pyrodrop.likelihoods import aligned, check_support, elements, per_row
from pyrodrop.likelihoods.classes import check_classes, labels
from pyrodrop.prediction.quantiles import cdf, checked_levels, mixture_quantiles


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution at N points, in the units of y.

    Attributes:
        f: samples of the function, ``[S, N, ...]``; logits for a classifier.
        distribution: distribution of y in each component of the predictive mixture, batch shape ``[T, N]``. T = S for
            sampled networks, and T = 1 if the predictive distribution is known in closed form.
        seed: seed of the samples of y.
        f_sd: standard deviation of f, ``[N, ...]``, if it is known in closed form; otherwise None.
        joint: whether f are samples of functions, from which the dependence between points can be estimated. If False, as
            in marginals of a Gaussian process, only the marginal distribution of each point is correct.

    Note:
        f and the tensors of the distribution may share memory: copy f before you change it in place.
    """

    f: Tensor
    distribution: TorchDistribution
    seed: int = 0
    f_sd: Tensor | None = None
    joint: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.f, Tensor) or self.f.dim() < 2:
            raise TypeError(f"f must be samples of the function, a tensor [S, N, ...]; got {shown(self.f)}")
        shape = getattr(self.distribution, "batch_shape", None)
        if shape is None or len(shape) < 2 or shape[1] != self.f.shape[1] or shape[0] not in (1, len(self.f)):
            kind = type(self.distribution).__name__
            got = shown(self.distribution) if shape is None else f"a {kind} of batch shape {list(shape)}"
            raise ValueError(
                f"distribution must have batch shape [T, {self.f.shape[1]}], like f [S, N, ...] of shape "
                f"{list(self.f.shape)}, with T = {len(self.f)} or 1; got {got}"
            )

    @property
    def mean(self) -> Tensor:
        """E[y], ``[N, ...]`` like y; for a classifier the mean probability of each class, ``[N, ..., classes]``.

        Raises:
            TypeError: the likelihood's distribution has no closed-form mean or variance.
        """
        return component_moments(self.distribution)[0].mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y] including observation noise, ``[N, ...]``, computed from centred squares to avoid cancellation.

        Raises:
            TypeError: the likelihood's distribution has no closed-form mean or variance.
        """
        mean, variance = component_moments(self.distribution)
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

    @checked
    def sample_y(self, num_samples: Annotated[int, Count("the number of samples of y")]) -> Tensor:
        """Samples of y, ``[num_samples, N, ...]``, from the components of the mixture in turn, with the seed `seed`.

        Raises:
            TypeError, ValueError: `num_samples` is no positive whole number.
        """
        components = self.distribution.batch_shape[0]
        rounds = math.ceil(num_samples / components)
        with seeded(self.seed, self.f.device), torch.no_grad():
            draws: Tensor = self.distribution.sample((rounds,))
        return draws.flatten(0, 1)[:num_samples]

    def log_density(self, y: Tensor) -> Tensor:
        """log p(y_n | x_n) under the mixture, ``[N]``, computed with logsumexp.

        Args:
            y: observations ``[N, ...]``, as `data.Dataset` takes them. An observation with several elements has one joint
                density.

        Raises:
            TypeError: y is no array of numbers, or of bools for real observations.
            ValueError: y does not have the shape of the prediction, has values outside the distribution's support, or is NaN
                or infinite; class labels are not of an integer dtype, or are not classes of the prediction.
        """
        each = self.distribution.log_prob(self.aligned(y))
        return torch.logsumexp(each, 0) - math.log(self.distribution.batch_shape[0])

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) under the mixture for every element of y separately, ``[N, ...]`` like y.

        Raises:
            ValueError: y does not have the shape of the prediction, or has values outside the distribution's support.
            TypeError: y is no array of numbers; the likelihood's distribution has no cumulative distribution function, such
                as that of class labels.
        """
        of_element = elements(self.distribution)
        try:
            return cdf(of_element, self.aligned(y)).mean(0)
        except NotImplementedError:
            raise TypeError(
                f"cdf needs real observations with a cumulative distribution function; {type(of_element).__name__} has none"
            ) from None

    @checked
    def quantile(self, q: Any) -> Tensor:
        """Quantiles of the predictive distribution of every element of y, observation noise included.

        They are those of the equal mixture over the draws, p(y | x) = mean_t p(y | f_t), computed as roots of its cumulative
        distribution function, without sampling y. The draws themselves are samples: with T of them, the probability below
        the q-quantile has a standard error of at most sqrt(q (1 - q) / T), which decreases as the share of noise increases.

        Args:
            q: probability below the quantile, in (0, 1), or a list or vector of Q of them.

        Returns:
            ``[N, ...]`` like y, or ``[Q, N, ...]``. For counts (Poisson, negative binomial, Bernoulli) the smallest
            whole numbers k with P(Y <= k) >= q, int64. Their probabilities have an error of 1e-15 for counts of a million.

        Raises:
            TypeError: y are class labels, which have no quantiles; or neither PyTorch nor this package knows the cumulative
                distribution function of the likelihood's distribution and its inverse.
            ValueError: q is not between 0 and 1, or nearer to 0 or 1 than 1e-9; a prediction is not finite; a quantile is
                above 2^53 (counts) or 1e100 scales (Student's t).

        Example:
            >>> import torch, pyro.distributions as dist, pyrodrop
            >>> f = torch.tensor([[[0.0]], [[4.0]]])
            >>> pyrodrop.Prediction(f, dist.Normal(f, 1.0).to_event(1)).quantile([0.1, 0.5]).flatten()
            tensor([-0.8416,  2.0000])
        """
        levels = checked_levels(q)
        quantiles = mixture_quantiles(self.distribution, levels.reshape(-1).to(self.f.device))
        quantiles = quantiles if levels.dim() else quantiles[0]
        return quantiles.to(self.f.dtype) if quantiles.is_floating_point() else quantiles.to(self.f.device)

    @checked
    def interval(
        self,
        level: Annotated[float, Real("the probability of a central interval", above=0, below=1)] = 0.9,
    ) -> tuple[Tensor, Tensor]:
        """The central interval with probability `level`, for every element of y: its ends, ``[N, ...]`` each.

        Its ends are ``quantile((1 - level) / 2)`` and ``quantile((1 + level) / 2)``: equal probabilities lie outside. For
        counts the interval includes its ends and has at least this probability.

        Args:
            level: probability of the interval.

        Raises:
            TypeError, ValueError: as `quantile`; `level` is not between 0 and 1.
        """
        low, high = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return low, high

    def aligned(self, y: Any) -> Tensor:
        """y as a tensor with the shape of one component's samples; raises an error instead of broadcasting another shape."""
        y = check_finite("y", without_graph(tensor_of(y, "y"), "y").to(self.f.device))
        y = aligned(y, per_row(self.distribution, 2))
        of_element = elements(self.distribution)
        if isinstance(of_element, Categorical):
            y = labels(y)
            check_classes(y, of_element.logits[0], of_element.logits.shape[-1])
            return y
        check_support(y, of_element, f"the prediction, of {type(of_element).__name__} distributions")
        return y.to(of_element.logits.dtype) if isinstance(of_element, Bernoulli) else y


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
