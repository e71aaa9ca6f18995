"""Gaussian dropout with independent noise, type B.

    w_ij = m_ij (1 + sqrt(alpha_ij) e_ij),   e_ij ~ N(0, 1),   so   w_ij ~ N(m_ij, alpha_ij m_ij^2)

alpha is one number, one per input unit (the caller reshapes it to broadcast against the weight), or one per weight. Kingma,
Salimans & Welling (2015), Variational Dropout and the Local Reparameterization Trick, arXiv:1506.02557, section 3.1.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from pyrodrop.distributions.noise_form import NoiseForm
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import Size, WeightDistribution, check_broadcast, check_log_alpha, check_weight


class MultiplicativeNormal(WeightDistribution):
    """Independent Gaussians whose standard deviations are proportional to their means.

    Args:
        loc: the means M, shape ``batch_shape + event_shape``.
        log_alpha: log of the variance divided by the squared mean; a number or a tensor that broadcasts to `loc`.
        event_dim: number of trailing dimensions of `loc` that form one weight; all of them if None.

    Raises:
        ValueError: `loc` has no dimensions; or, if arguments are validated, a value is NaN or infinite, or `log_alpha` does
            not broadcast.
        TypeError: if arguments are validated: an argument is of another type.
    """

    def __init__(
        self, loc: Tensor, log_alpha: Tensor | float, *, event_dim: int | None = None, validate_args: bool | None = None
    ) -> None:
        validates = self.validates(validate_args)
        if validates:
            check_weight(loc, event_dim, "weight", InputUnits())
            check_log_alpha(log_alpha)
        self.log_alpha = torch.as_tensor(log_alpha, dtype=loc.dtype, device=loc.device)
        super().__init__(loc, event_dim=event_dim, validate_args=False)
        if validates:
            check_broadcast(self.log_alpha, "log_alpha", loc.shape, "loc")

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.log_alpha.exp() * self.loc**2

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm(lambda: self.mean, variance=lambda: self.variance)

    def at(self, loc: Tensor) -> Self:
        return type(self)(loc, self.log_alpha, event_dim=len(self.event_shape), validate_args=False)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)  # type: ignore[arg-type]
        return self.loc * (1 + torch.exp(self.log_alpha / 2) * noise)

    def log_prob(self, value: Tensor) -> Tensor:
        log_variance = self.log_variance
        quadratic = (value - self.loc) ** 2 * torch.exp(-log_variance)
        return -self.total_weights(0.5 * (quadratic + log_variance + math.log(2 * math.pi)))

    @property
    def log_variance(self) -> Tensor:
        """ln(alpha m^2), ``batch_shape + event_shape``; finite also where a mean is 0."""
        return (self.log_alpha + torch.log(self.loc**2 + torch.finfo(self.loc.dtype).tiny)).expand(self.loc.shape)

    def entropy(self) -> Tensor:
        """Differential entropy in nats."""
        return self.total_weights(0.5 * (self.log_variance + math.log(2 * math.pi * math.e)))
