"""Likelihoods of positive observations, with the logarithm as link.

    ln y ~ N(ln m, scale^2)           equal relative errors                  m = s exp(output), the median
    ln y ~ N(c + d f, d^2 v(r))       network output = (f, r)                c, d: mean and standard deviation of ln y

y ``[N, D]``; s is the mean of y if it is standardised, else 1.
"""

from __future__ import annotations

from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods.dispersed import Dispersion, LogLink, log_mean
from pyrodrop.likelihoods.gaussian import HeteroscedasticGaussian
from pyrodrop.scaling import Standardize


class LogNormal(LogLink):
    """Positive observations; the outputs of the network are the logarithm of their median, and f is the median.

    References:
        McCullagh & Nelder (1989), Generalized Linear Models, chapter 8.

    Args:
        scale: standard deviation of ln y, positive, or a list with one value per column of y. If None, it is learned,
            starting from its estimate for y of the training data. `HeteroscedasticLogNormal` has one per example.
        learned: whether a numeric `scale` is trained, with this initial value and one value per column of y ``[N, D]``.

    Raises:
        ValueError: `scale` is not positive.
        TypeError: `scale` is neither a number nor a list of such, or `learned` neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihoods.LogNormal(0.5)(torch.zeros(1, 1), Standardize()).mean
        tensor([[1.1331]])
    """

    parameter = "scale"

    def __init__(self, scale: Dispersion = None, *, learned: bool = False) -> None:
        super().__init__(scale, learned, "the standard deviation of ln y")

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        log_median = log_mean(output, targets)
        return dist.LogNormal(log_median, parameter.expand_as(log_median))

    def estimate(self, y: Tensor) -> Tensor:
        return y.log().std(correction=0)


class HeteroscedasticLogNormal(HeteroscedasticGaussian):
    """Positive observations whose logarithm is Gaussian, with a variance that the network predicts.

    The network has ``2 D`` outputs for y ``[N, D]``, as in `HeteroscedasticGaussian`, for ln y standardised to mean 0 and
    standard deviation 1 in the training data. f is the median m of y. The mean of y is m exp(v / 2), where v is the variance
    of ln y. It can be far beyond the data in a few rows with a large v; there, use the median as the prediction.

    Args:
        link: as for `HeteroscedasticGaussian`.

    Attributes:
        factor: factor of the variance; 1 by default, and not trained.
        of_log: the standardisation of ln y.

    Raises:
        ValueError, TypeError: as `HeteroscedasticGaussian`.
    """

    def __init__(self, link: Literal["exp", "softplus"] = "exp") -> None:
        super().__init__(link)
        self.of_log = Standardize()

    def start(self, y: Tensor) -> None:
        if self.of_log.loc.dim() == 0:  # otherwise it is known, as when training continues
            dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
            self.of_log = Standardize.of(y.detach().double().log()).to(dtype)

    def units(self, targets: Standardize) -> Standardize:
        return Standardize()

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        log_median = super().location(output, self.of_log)
        return dist.LogNormal(log_median, self.sd(output, self.of_log)).to_event(1)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return super().location(output, self.of_log).exp()
