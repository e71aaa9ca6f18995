"""Log-uniform priors: uniform in the logarithm of a weight's size.

    LogUniform            p(w) = 1 / |w|                                         improper
    TruncatedLogUniform   p(w) = 1 / (2 (high - low) |w|),   low <= ln |w| <= high

Kingma, Salimans & Welling (2015), section 3. Improper means that the density has no integral: posteriors under it need not
exist, and its ELBO is no bound on anything (Hron, Matthews & Ghahramani 2018, Variational Bayesian dropout: pitfalls and
fixes).
"""

from __future__ import annotations

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.distributions.weight import Size


class LogUniform(TorchDistribution):
    """The improper prior ``p(log |w|) = const``, elementwise.

    Args:
        shape: batch shape; ``to_event`` makes a weight of it.
        kl: which form of the divergence from a Gaussian to use, see `pyrodrop.log_uniform_kl`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, shape: Size = (), kl: str = "exact", validate_args: bool | None = None) -> None:
        self.kl = kl
        super().__init__(torch.Size(shape), validate_args=validate_args)

    support = constraints.real

    def expand(self, batch_shape: Size, _instance: None = None) -> LogUniform:
        return LogUniform(batch_shape, self.kl)

    def log_prob(self, value: Tensor) -> Tensor:
        return -value.abs().log().expand(torch.broadcast_shapes(value.shape, self.batch_shape))

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "the log-uniform prior is improper and has no draws; TruncatedLogUniform(low, high) has, or a proper prior"
        )


class TruncatedLogUniform(TorchDistribution):
    """Log-uniform between two sizes, either sign: the proper one.

    Args:
        low, high: bounds of ln |w|, with low < high.
        shape: batch shape.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, low: float, high: float, shape: Size = (), validate_args: bool | None = None) -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low and high bound the log of a weight's size, low < high; got {low} and {high}")
        self.low, self.high = low, high
        super().__init__(torch.Size(shape), validate_args=validate_args)

    support = constraints.real

    def expand(self, batch_shape: Size, _instance: None = None) -> TruncatedLogUniform:
        return TruncatedLogUniform(self.low, self.high, batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        size = value.abs().log().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        inside = (size >= self.low) & (size <= self.high)
        return torch.where(inside, -size - math.log(2 * (self.high - self.low)), -math.inf)

    def sample(self, sample_shape: Size = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)  # type: ignore[arg-type]
        sign = torch.randint(0, 2, shape) * 2 - 1
        return sign * torch.exp(self.low + (self.high - self.low) * torch.rand(shape))
