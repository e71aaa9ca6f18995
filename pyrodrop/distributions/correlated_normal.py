"""Gaussian dropout with correlated noise, type A.

    W = M diag(s),   s_k ~ N(1, alpha_k)                 M [out, in] or as `units` says, s [in]

One scale per input unit and draw: the weights that leave a unit move together, Cov(w_jk, w_lk) = alpha_k m_jk m_lk. The
marginals are those of type B, but the law lives on a line per unit and has no density over weights, so its divergence
from the log-uniform prior is that of the scales. Kingma, Salimans & Welling (2015), section 3.2 and appendix B.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from pyrodrop.distributions.noise_form import NoiseForm
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import ConstantLeftOut, Size, WeightDistribution


class CorrelatedNormal(WeightDistribution):
    """A Gaussian scale for every input unit.

    Args:
        loc: the means M, shape ``batch_shape + event_shape``.
        log_alpha: log variance of the scales, broadcast to ``[in]``.
        event_dim: how many trailing dimensions of `loc` are one weight; all of them if None.
        units: where the weight's input units are, ``[out, in, ...]`` by default.
    """

    def __init__(
        self,
        loc: Tensor,
        log_alpha: Tensor | float,
        *,
        event_dim: int | None = None,
        units: InputUnits = InputUnits(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        self.log_alpha = torch.as_tensor(log_alpha, dtype=loc.dtype, device=loc.device)
        super().__init__(loc, event_dim=event_dim, per="input", units=units, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.over_units(self.log_alpha.exp().expand(self.noise_shape)) * self.loc**2

    @property
    def noise_form(self) -> NoiseForm:
        if self.columns:
            return NoiseForm(lambda: self.loc, self._scales)
        return NoiseForm(lambda: self.loc, variance=lambda: self.variance)

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        """One per input unit."""
        return ConstantLeftOut((self.batch_shape + self.noise_shape).numel(), "units")

    def at(self, loc: Tensor) -> Self:
        event_dim = len(self.event_shape)
        return type(self)(loc, self.log_alpha, event_dim=event_dim, units=self.units, validate_args=False)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape + self.noise_shape
        return self.over_units(self._scales(shape, self.loc.dtype)) * self.loc

    def _scales(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return 1 + torch.exp(self.log_alpha / 2) * torch.randn(shape, dtype=dtype, device=self.loc.device)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "type A has no density over weights, it lives on a line per input unit: train it under priors.LogUniform, by "
            "pyrodrop.fit or Pyro's TraceMeanField_ELBO, or use type B"
        )
