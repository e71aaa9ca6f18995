"""Observations, some of which are missing.

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

from pyrodrop.checks import count, instance
from pyrodrop.distributions.observed import inside, missing_entries, observed
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.likelihoods.shapes import elements, support_of
from pyrodrop.scaling import Standardize


class Missing(Likelihood):
    """A likelihood for y with missing elements, which are left out of the log density.

    This assumes that elements are missing at random: given x and the other elements, whether an element is missing does not
    depend on its value.

    Args:
        likelihood: the likelihood of the observed elements.
        value: the value that marks missing elements of y: NaN for real numbers; or a whole number that y cannot have, such
            as -100 for class labels, as ``ignore_index`` of `torch.nn.CrossEntropyLoss`.

    Raises:
        TypeError: `likelihood` is no `Likelihood`, or `value` is neither NaN nor a whole number.
        ValueError: `value` is a whole number beyond 2^31 in magnitude; `likelihood` is a `Missing`. Before training: nothing
            is observed; `value` is in the support of y, or not NaN for real y; elements of an observation are not
            independent given the outputs, or their support depends on the outputs.

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
        super().__init__()
        instance(likelihood, Likelihood, "likelihood", "a Likelihood, such as likelihoods.Gaussian()")
        if likelihood.missing is not None:
            raise ValueError(f"likelihood must be one of complete observations; got {likelihood.describe()}")
        self.likelihood = likelihood
        self.copies: int = likelihood.copies
        if not (isinstance(value, float) and math.isnan(value)):
            what = "the value of missing observations, NaN or a whole number,"
            value = count(value, "value", what, least=-(2**31), most=2**31)
        self.missing = value

    @property
    def learned(self) -> bool:
        """Whether a parameter of the likelihood is trained."""
        return bool(getattr(self.likelihood, "learned", False))

    @property
    def unknown(self) -> str:
        return self.likelihood.unknown

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return self.likelihood.location(output, targets)

    def as_target(self, y: Tensor) -> Tensor:
        return self.likelihood.as_target(y)

    def outputs(self, targets: int) -> int:
        return self.likelihood.outputs(targets)

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
