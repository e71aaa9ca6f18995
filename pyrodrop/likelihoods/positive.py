"""Likelihood of positive observations, with the logarithm as link.

ln y ~ N(c + d f, d^2 v(r))       network output = (f, r), y [N, D]      c, d: mean and standard deviation of ln y
"""

from __future__ import annotations

from typing import Literal

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods.gaussian import HeteroscedasticGaussian
from pyrodrop.scaling import Standardize


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
