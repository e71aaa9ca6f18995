"""Likelihoods of counts, with the logarithm as link.

    y ~ Poisson(m)       E[y] = Var[y] = m                       m = s exp(output)
    y ~ NB(m, a)         E[y] = m,   Var[y] = m + a m^2          y [N, D], y in 0, 1, 2 ...

s is the mean of y if it is standardised, else 1. For a dispersion a -> 0, the negative binomial distribution is the Poisson
distribution.
"""

from __future__ import annotations

from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods import precise
from pyrodrop.likelihoods.dispersed import Dispersed, Dispersion, halves, log_mean
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize


class Poisson(Likelihood):
    """Counts; the outputs of the network are the logarithm of their mean, and f is the mean.

    The likelihood of a network trained by `torch.nn.PoissonNLLLoss` (`pyrodrop.read`). `NegativeBinomial` is for counts that
    vary more.

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


class NegativeBinomial(Dispersed):
    """Counts with a dispersion; the outputs of the network are the logarithm of their mean, and f is the mean.

    References:
        Hilbe (2011), Negative Binomial Regression, section 8.1: NB2.

    Args:
        dispersion: a, positive, or a list with one value per column of y. If None, it is learned, starting from its estimate
            for y of the training data, as if x explained nothing. With ``"network"`` it is the exponential of a second
            output of the network, one per example.
        learned: whether a numeric `dispersion` is trained, with this initial value and one value per column of y
            ``[N, D]``.

    Raises:
        ValueError: `dispersion` is not positive, or `learned` is True and the network predicts it.
        TypeError: `dispersion` is neither a number nor a list of such, or `learned` neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> y = likelihoods.NegativeBinomial(0.5)(torch.tensor([[0.0], [1.0]]), Standardize())
        >>> y.mean.flatten(), y.variance.flatten()
        (tensor([1.0000, 2.7183]), tensor([1.5000, 6.4128]))
    """

    parameter = "dispersion"
    predictable = True

    def __init__(self, dispersion: Dispersion = None, *, learned: bool = False) -> None:
        super().__init__(dispersion, learned, "a of the variance m + a m^2")

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        log_m = log_mean(output, targets)
        return precise.NegativeBinomial((1 / parameter).expand_as(log_m), logits=log_m + parameter.log())

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return log_mean(halves(output, self.describe())[0] if self.by_network else output, targets).exp()

    def estimate(self, y: Tensor) -> Tensor:
        return ((y.var(correction=0) - y.mean()) / y.mean().square()).clamp(min=1e-3)  # least: Poisson or less spread
