"""Observations, some of which are censored: known only to lie above, below or between limits."""

from __future__ import annotations

from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.censored import censored, check_ends, ends_shape, finite_ends, middles
from pyrodrop.likelihoods.likelihood import Incomplete
from pyrodrop.likelihoods.shapes import per_row
from pyrodrop.scaling import Standardize


class Censored(Incomplete):
    """A likelihood for observations that are exact, right-, left- or interval-censored, each with its own limits.

        log p(y | f) = sum over n, k of log p_0(y_nk | f_n)                                 where y_nk is exact
                                        log P_0(lower_nk < Y < upper_nk | f_n)              where it is censored

    y has two columns for each target, its lower and its upper end; `pyrodrop.distributions.censored` has the four cases.
    With a Gaussian and one fixed limit this is the model of Tobin (1958); with a log-normal distribution it is that of
    survival times.

    y is ``[N, 2]``, a lower and an upper end: ``[3, 3]`` is an exact 3, ``[3, inf]`` a value above 3, ``[-inf, 3]`` one
    below 3, ``[2, 3]`` one in between. For D targets it is ``[N, 2 D]``, all lower ends first. This assumes that the limits
    carry no other information about the value, given x, as for the end of a study or a limit of detection.

    Predictions are those of the uncensored values, ``[N, D]``. The log density of an interval is the logarithm of its
    probability; other scores need exact values, ``[N, D]`` or equal ends.

    References:
        Tobin (1958), Estimation of Relationships for Limited Dependent Variables, https://doi.org/10.2307/1907382.

    Args:
        likelihood: the likelihood of the values, with a Gaussian or log-normal distribution: `Gaussian`,
            `HeteroscedasticGaussian`, `LogNormal`, or your own. Learned noise is initialised from the exact values, the
            midpoints of intervals, and the finite ends of values with one limit.

    Raises:
        TypeError: `likelihood` is no `Likelihood`.
        ValueError: `likelihood` is a `Censored` or `Missing`. Before training: it has another distribution (the tails of
            Student's t, gamma and beta distributions, or their derivatives, are not in PyTorch; counts and classes are no
            real numbers); y does not have two ends for each target, or a lower end is above the upper one.

    Example:
        >>> import math, torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> distribution = likelihoods.Censored(likelihoods.Gaussian(1.0))(torch.zeros(3, 1), Standardize())
        >>> distribution.log_prob(torch.tensor([[0.0, 0.0], [0.0, math.inf], [-1.0, 1.0]]))
        tensor([-0.9189, -0.6931, -0.3817])
    """

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return censored(self.likelihood(output, targets))

    def start(self, y: Tensor) -> None:
        if y.dim() == 2 and y.shape[1] % 2 == 0 and y.is_floating_point():  # `check` raises for others
            self.likelihood.start(middles(y))

    def predictive(self, output: Tensor, targets: Standardize) -> tuple[TorchDistribution, Tensor]:
        distribution, f = self.likelihood.predictive(output, targets)
        return censored(distribution), f

    def units(self, targets: Standardize) -> Standardize:
        """One location and scale for each target: the mean of those for its lower and its upper ends."""
        pairs = [
            value.chunk(2) if value.dim() and len(value) > 1 else (value,) for value in (targets.loc, targets.scale)
        ]
        loc, scale = (sum(pair) / len(pair) for pair in pairs)
        return Standardize(loc, scale)

    def outputs(self, targets: int) -> int:
        return self.likelihood.outputs(targets // 2)

    def check(self, y: Tensor, output: Tensor, targets: Standardize) -> None:
        distribution: Any = per_row(self(output, targets), 1)
        want = [len(y), *ends_shape(distribution)]
        if list(y.shape) != want or not y.is_floating_point():
            raise ValueError(
                f"y must be real numbers of shape {want} under {self.describe()} with this network, the lower and then the "
                f"upper ends; got {y.dtype} of shape {list(y.shape)}"
            )
        check_ends(y)
        self.likelihood.check(finite_ends(y), output, targets)

    def describe(self) -> str:
        return f"Censored({self.likelihood.describe()})"
