"""Poisson likelihood: counts whose variance is their mean.

y ~ Poisson(m),   m = s exp(output)        m, y [N, D], y in 0, 1, 2 ...;  s is the mean of y if it is standardised, else 1
"""

from __future__ import annotations

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods import precise
from pyrodrop.likelihoods.dispersed import log_mean
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize


class Poisson(Likelihood):
    """Counts; the outputs of the network are the logarithm of their mean, and f is the mean.

    With a network trained by `torch.nn.PoissonNLLLoss`, `pyrodrop.read` takes this likelihood. `NegativeBinomial` has counts
    that vary more.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihood = likelihoods.Poisson()
        >>> likelihood(torch.tensor([[0.0], [1.0]]), Standardize()).mean.flatten()
        tensor([1.0000, 2.7183])
    """

    copies = 4

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return precise.Poisson(self.location(output, targets)).to_event(1)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return log_mean(output, targets).exp()
