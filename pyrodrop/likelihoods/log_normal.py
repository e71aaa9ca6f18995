"""Log-normal likelihood: positive observations whose relative errors are equal.

ln y ~ N(ln m, scale^2),   m = s exp(output), the median        y [N, D];  s is the mean of y if it is standardised, else 1
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrodrop.likelihoods.dispersed import Dispersed, Dispersion, log_mean
from pyrodrop.likelihoods.likelihood import start_at
from pyrodrop.scaling import Standardize

_TIMES = 3.0  # that of ln y around a constant, at most


class LogNormal(Dispersed):
    """Positive observations; the outputs of the network are the logarithm of their median, and f is the median.

    Args:
        scale: standard deviation of ln y, positive. None for one that is learned and starts at that of the y that it is
            trained on; ``"network"`` for one of every example, 1 / (exp(-r) + 1 / c) of a second output r, where c is three
            times the standard deviation of ln y in the training data. It stays below c, since the mean of y, m
            exp(scale^2 / 2), would otherwise be that of the few draws with a large scale.
        learned: whether the number `scale` is trained, too.

    Raises:
        ValueError: `scale` is not positive, or learned beside the network.
        TypeError: `scale` is no number, or `learned` neither True nor False.

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
        if self.by_network:
            self.register_buffer("largest", torch.tensor(math.inf))  # c, one for each column of y
            self.from_data = ("largest",)

    def start(self, y: Tensor) -> None:
        super().start(y)
        if self.by_network and bool(self.largest.isinf().all()):  # type: ignore[operator, union-attr]
            start_at(self, "largest", _TIMES * self.estimates(y))

    def positive(self, output: Tensor) -> Tensor:
        largest: Tensor = self.largest  # type: ignore[assignment]
        return 1 / ((-output).exp() + 1 / largest.to(output.dtype))

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        log_median = log_mean(output, targets)
        return dist.LogNormal(log_median, parameter.expand_as(log_median))

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return log_mean(self.mean_of(output), targets).exp()

    def estimate(self, y: Tensor) -> Tensor:
        return y.log().std(correction=0)
