"""Log-uniform priors: the logarithm of the absolute value of a weight is uniform.

    LogUniform            p(w) = 1 / |w|                                         improper
    TruncatedLogUniform   p(w) = 1 / (2 (high - low) |w|),   low <= ln |w| <= high

Improper means that the density does not integrate to a finite number: the posterior may not exist, and the ELBO is not a
bound on the evidence.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.checks import counts, one_of, real
from pyrodrop.distributions.weight import Size

Form: TypeAlias = Literal["exact", "molchanov", "kingma"]


class LogUniform(TorchDistribution):
    """The improper prior ``p(log |w|) = const``, elementwise.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.
        Hron, Matthews & Ghahramani (2018), https://arxiv.org/abs/1807.01969.

    Args:
        shape: batch shape; apply ``to_event`` for the distribution of one weight tensor.
        kl: form of the KL divergence from a Gaussian, a key of `pyrodrop.divergences.FORMS`: ``exact``, ``molchanov`` or
            ``kingma``.

    Raises:
        ValueError: `kl` is unknown, or a size of `shape` is negative.
        TypeError: `shape` is no list of whole numbers.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, shape: Size = (), kl: Form = "exact", validate_args: bool | None = None) -> None:
        self.kl: Form = one_of(kl, Form, "kl")
        super().__init__(_shape(shape), validate_args=validate_args)

    support = constraints.real

    def expand(self, batch_shape: Size, _instance: None = None) -> LogUniform:
        return LogUniform(batch_shape, self.kl)

    def log_prob(self, value: Tensor) -> Tensor:
        return -value.abs().log().expand(broadcast_shape(value.shape, self.batch_shape))

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "the log-uniform prior is improper and cannot be sampled; use TruncatedLogUniform(low, high) or another "
            "proper prior"
        )


_LARGEST = 700.0  # bound of |ln |w||; float64 overflows above exp(709)


class TruncatedLogUniform(TorchDistribution):
    """The proper prior ``p(log |w|) = 1 / (high - low)`` on [low, high], with a random sign, elementwise.

    Args:
        low, high: bounds of ln |w|, with low < high.
        shape: batch shape.

    Raises:
        ValueError: the bounds are outside [-700, 700], beyond which float64 overflows, or `low` is not below `high`.
        TypeError: the bounds are no real numbers, or `shape` is no list of whole numbers.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    _like: Tensor | None = None

    def __init__(self, low: float, high: float, shape: Size = (), validate_args: bool | None = None) -> None:
        self.low: float = real(low, "low", "the lower bound of ln |w|", least=-_LARGEST, most=_LARGEST)
        self.high: float = real(high, "high", "the upper bound of ln |w|", least=-_LARGEST, most=_LARGEST)
        if not low < high:
            raise ValueError(
                f"low and high are bounds of ln |w| and must be finite with low < high; got {low} and {high}"
            )
        super().__init__(_shape(shape), validate_args=validate_args)

    support = constraints.real

    def expand(self, batch_shape: Size, _instance: None = None) -> TruncatedLogUniform:
        return TruncatedLogUniform(self.low, self.high, batch_shape).drawing_like(self._like)

    def drawing_like(self, tensor: Tensor | None) -> TruncatedLogUniform:
        """Sample on the device and with the dtype of a tensor, which the bounds, as plain numbers, do not determine."""
        self._like = tensor
        return self

    def log_prob(self, value: Tensor) -> Tensor:
        size = value.abs().log().expand(broadcast_shape(value.shape, self.batch_shape))
        inside = (size >= self.low) & (size <= self.high)
        return torch.where(inside, -size - math.log(2 * (self.high - self.low)), -math.inf)

    def sample(self, sample_shape: Size = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)  # type: ignore[arg-type]
        device, dtype = (None, None) if self._like is None else (self._like.device, self._like.dtype)
        sign = torch.randint(0, 2, shape, device=device) * 2 - 1
        return sign * torch.exp(self.low + (self.high - self.low) * torch.rand(shape, device=device, dtype=dtype))


def _shape(shape: Size) -> torch.Size:
    return torch.Size(counts(shape, "shape", "the sizes of the batch", least=0))
