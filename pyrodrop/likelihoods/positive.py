"""Likelihoods of positive observations, with the logarithm as link, and of shares, with the logit.

    y ~ Gamma(1 / a, 1 / (a m))       E[y] = m,   Var[y] = a m^2             m = s exp(output), the mean
    ln y ~ N(ln m, scale^2)           equal relative errors                  m = s exp(output), the median
    ln y ~ N(c + d f, d^2 v(r))       network output = (f, r)                c, d: mean and standard deviation of ln y
    y ~ Beta(m k, (1 - m) k)          E[y] = m,   Var[y] = m (1 - m) / (1 + k)             m = sigmoid(output)

y ``[N, D]``; s is the mean of y if it is standardised, else 1.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods import precise
from pyrodrop.likelihoods.dispersed import FAR, Dispersed, Dispersion, LogLink, log_mean
from pyrodrop.likelihoods.gaussian import HeteroscedasticGaussian
from pyrodrop.likelihoods.likelihood import start_at
from pyrodrop.scaling import Standardize

_LARGEST = 3.0  # bound of the scale of a log-normal likelihood, in standard deviations of ln y


class Gamma(LogLink):
    """Positive observations; the outputs of the network are the logarithm of their mean, and f is the mean.

    References:
        McCullagh & Nelder (1989), Generalized Linear Models, chapter 8.

    Args:
        dispersion: a, the squared ratio of standard deviation and mean, positive, or a list with one value per column of y.
            If None, it is learned, starting from its estimate for y of the training data. With ``"network"`` it is the
            exponential of a second output of the network, one per example.
        learned: whether a numeric `dispersion` is trained, with this initial value and one value per column of y
            ``[N, D]``.

    Raises:
        ValueError: `dispersion` is not positive, or `learned` is True and the network predicts it.
        TypeError: `dispersion` is neither a number nor a list of such, or `learned` neither True nor False.

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

    def estimate(self, y: Tensor) -> Tensor:
        return y.var(correction=0) / y.mean().square()


class LogNormal(LogLink):
    """Positive observations; the outputs of the network are the logarithm of their median, and f is the median.

    References:
        McCullagh & Nelder (1989), Generalized Linear Models, chapter 8.

    Args:
        scale: standard deviation of ln y, positive, or a list with one value per column of y. If None, it is learned,
            starting from its estimate for y of the training data. With ``"network"`` it is 1 / (exp(-r) + 1 / c) for a
            second output r of the network, one per example. c is three times the standard deviation of ln y in the training
            data; this bound prevents a few draws with a large scale from dominating the mean of y, m exp(scale^2 / 2).
        learned: whether a numeric `scale` is trained, with this initial value and one value per column of y ``[N, D]``.

    Raises:
        ValueError: `scale` is not positive, or `learned` is True and the network predicts it.
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
        if self.by_network:
            self.register_buffer("largest", torch.tensor(math.inf))  # c, one for each column of y
            self.from_data = ("largest",)

    def start(self, y: Tensor) -> None:
        super().start(y)
        if self.by_network and bool(self.largest.isinf().all()):  # type: ignore[operator, union-attr]
            start_at(self, "largest", _LARGEST * self.estimates(y))

    def positive(self, output: Tensor) -> Tensor:
        largest: Tensor = self.largest  # type: ignore[assignment]
        return 1 / ((-output).exp() + 1 / largest.to(output.dtype))

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


class Beta(Dispersed):
    """Observations strictly between 0 and 1; the outputs of the network are the logits of their mean f.

        y ~ Beta(m k, (1 - m) k),   E[y] = m = sigmoid(output),   Var[y] = m (1 - m) / (1 + k)        m, y [N, D]

    References:
        Ferrari & Cribari-Neto (2004), Beta Regression for Modelling Rates and Proportions.

    Args:
        concentration: k, positive, or a list with one value per column of y; a larger k means less noise. If None, it is
            learned, starting from its estimate for y of the training data. With ``"network"`` it is the exponential of a
            second output of the network, one per example.
        learned: whether a numeric `concentration` is trained, with this initial value and one value per column of y
            ``[N, D]``.

    Raises:
        ValueError: `concentration` is not positive, or `learned` is True and the network predicts it.
        TypeError: `concentration` is neither a number nor a list of such, or `learned` neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> y = likelihoods.Beta(3.0)(torch.zeros(1, 1), Standardize())
        >>> y.mean, y.variance
        (tensor([[0.5000]]), tensor([[0.0625]]))
    """

    parameter = "concentration"
    copies = 8  # PyTorch's Beta stores its parameters a second time, stacked
    ends = (0.0, 1.0)

    def __init__(self, concentration: Dispersion = None, *, learned: bool = False) -> None:
        super().__init__(concentration, learned, "k of the variance m (1 - m) / (1 + k)")

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        output = output.clamp(-FAR, FAR)
        return precise.Beta(output.sigmoid() * parameter, (-output).sigmoid() * parameter)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return self.mean_of(output).sigmoid()

    def estimate(self, y: Tensor) -> Tensor:
        return (y.mean() * (1 - y.mean()) / y.var(correction=0) - 1).clamp(min=1e-3)
