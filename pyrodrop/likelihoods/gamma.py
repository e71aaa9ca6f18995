"""Gamma likelihood: positive observations whose standard deviation grows with their mean.

y ~ Gamma(1 / a, 1 / (a m)),   E[y] = m = s exp(output),   Var[y] = a m^2        y [N, D];  s as in a log-normal likelihood

McCullagh & Nelder (1989), Generalized Linear Models, chapter 8, with the logarithm as link.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyrodrop.likelihoods import precise
from pyrodrop.likelihoods.dispersed import Dispersed, Dispersion, log_mean
from pyrodrop.scaling import Standardize


class Gamma(Dispersed):
    """Positive observations; the outputs of the network are the logarithm of their mean, and f is the mean.

    Args:
        dispersion: a, the square of standard deviation over mean, positive. None for one that is learned and starts at that
            of the y that it is trained on; ``"network"`` for one of every example, the exponential of a second output.
        learned: whether the number `dispersion` is trained, too.

    Raises:
        ValueError: `dispersion` is not positive, or learned beside the network.
        TypeError: `dispersion` is no number, or `learned` neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> y = likelihoods.Gamma(0.25)(torch.ones(1, 1), Standardize())
        >>> y.mean, y.stddev
        (tensor([[2.7183]]), tensor([[1.3591]]))
    """

    parameter = "dispersion"
    ends = (0.0,)

    def __init__(self, dispersion: Dispersion = None, *, learned: bool = False) -> None:
        super().__init__(dispersion, learned, "the square of standard deviation over mean")

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        mean = log_mean(output, targets).exp()
        concentration = (1 / parameter).expand_as(mean)
        return precise.Gamma(concentration, concentration / mean)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return log_mean(self.mean_of(output), targets).exp()

    def estimate(self, y: Tensor) -> Tensor:
        return y.var(correction=0) / y.mean().square()
