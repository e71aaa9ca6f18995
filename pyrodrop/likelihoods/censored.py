"""Observations, some of which are missing, or censored: known only to lie above, below or between limits.

    log p(y | f) = sum over the observed elements of log p_0(y_nk | f_n)          y [N, ...]

A row with missing elements still counts as one of N: a minibatch of M rows has the factor N / M, so that its log density is
an unbiased estimate of the sum over all observed elements. For labels this is ``ignore_index`` of
`torch.nn.CrossEntropyLoss` with ``reduction="sum"``; ``reduction="mean"`` averages over the observed labels.
"""

from __future__ import annotations

import math
from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import count
from pyrodrop.distributions.censored import censored, check_ends, ends_shape, finite_ends, middles
from pyrodrop.distributions.observed import inside, missing_entries, observed
from pyrodrop.likelihoods.likelihood import Incomplete, Likelihood
from pyrodrop.likelihoods.shapes import elements, per_row, support_of
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


class Missing(Incomplete):
    """A likelihood for y with missing elements, which are left out of the log density.

    This assumes that elements are missing at random: given x and the other elements, whether an element is missing does not
    depend on its value.

    Args:
        likelihood: the likelihood of the observed elements.
        value: the value that marks missing elements of y: NaN for real numbers; or a whole number that y cannot have, such
            as -100 for class labels, as ``ignore_index`` of `torch.nn.CrossEntropyLoss`.

    Raises:
        TypeError: `likelihood` is no `Likelihood`, or `value` is neither NaN nor a whole number.
        ValueError: `value` is a whole number beyond 2^31 in magnitude; `likelihood` is a `Missing` or `Censored`. Before
            training: nothing is observed; `value` is in the support of y, or not NaN for real y; elements of an observation
            are not independent given the outputs, or their support depends on the outputs.

    Example:
        >>> import math, torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> distribution = likelihoods.Missing(likelihoods.Gaussian(1.0))(torch.zeros(2, 2), Standardize())
        >>> distribution.log_prob(torch.tensor([[0.0, math.nan], [0.0, 0.0]]))
        tensor([-0.9189, -1.8379])
    """

    missing: float

    def __init__(self, likelihood: Likelihood, value: float = math.nan) -> None:
        super().__init__(likelihood)
        if not (isinstance(value, float) and math.isnan(value)):
            what = "the value of missing observations, NaN or a whole number,"
            value = count(value, "value", what, least=-(2**31), most=2**31)
        self.missing = value

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return observed(self.likelihood(output, targets), self.missing)  # type: ignore[no-any-return]

    def start(self, y: Tensor) -> None:
        if self.missing == self.missing:  # the wrapped likelihood ignores NaN, but not a whole number
            y = y[~missing_entries(y, self.missing).reshape(len(y), -1).any(1)]
        if len(y):
            self.likelihood.start(y)

    def predictive(self, output: Tensor, targets: Standardize) -> tuple[TorchDistribution, Tensor]:
        # for all of y; `Prediction.missing` marks missing values
        return self.likelihood.predictive(output, targets)

    def check(self, y: Tensor, output: Tensor, targets: Standardize) -> None:
        real = y.is_floating_point()
        y, distribution = self.as_target(y), elements(self.likelihood(output, targets))
        missing = missing_entries(y, self.missing)
        if self.missing == self.missing:
            if real:
                raise ValueError(
                    f"value of likelihoods.Missing must be NaN for y of real numbers; got {self.missing:g}: pass "
                    "y.masked_fill(y == value, math.nan)"
                )
            support: Any = support_of(distribution)
            if support is not None and bool(support.check(y.new_tensor(self.missing)).any()):
                raise ValueError(
                    f"value of likelihoods.Missing must be one that y cannot have under {self.likelihood.describe()}; got "
                    f"{self.missing}"
                )
        if bool(missing.all()):
            raise ValueError(f"y must have an observation; got {y.numel()} missing values")
        self.likelihood.check(y.masked_fill(missing, inside(distribution)), output, targets)

    def describe(self) -> str:
        return f"Missing({self.likelihood.describe()}, {self.missing:g})"


def check_complete(model: Any, y: Tensor, what: str) -> None:
    """Raise a ValueError if y has missing values under the likelihood of a model.

    Args:
        model: a model of `pyrodrop.models`, or any other.
        what: the computation that needs all observations, for the message.
    """
    value = _missing_value(model)
    if value is None:
        return
    missing = missing_entries(y, value)
    if bool(missing.any()):
        raise ValueError(
            f"{what} needs every observation; got a y with {int(missing.sum())} missing of {y.numel()} values: leave "
            "out their rows"
        )


def leaves_out_missing(model: Any) -> bool:
    """Whether the likelihood of a model (of `pyrodrop.models` or any other) leaves out missing values of y."""
    return _missing_value(model) is not None


def _missing_value(model: Any) -> float | None:
    return getattr(getattr(model, "likelihood", None), "missing", None)
