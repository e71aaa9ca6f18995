"""Gaussian dropout with correlated noise, type A."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.distributions.noise_form import NoiseForm
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import ConstantLeftOut, Size, WeightDistribution, check_log_alpha


class CorrelatedNormal(WeightDistribution):
    """Weights whose columns are multiplied by one Gaussian scale per input unit.

        W = M diag(s),   s_k ~ N(1, alpha_k)                 M [out, in] or the layout given by `units`, s [in]

    Each sample has one scale per input unit, so all weights of a unit are scaled together: Cov(w_jk, w_lk) = alpha_k m_jk
    m_lk. The marginals equal those of type B. Each unit's weights lie on a line, so the distribution has no density over
    weights; its KL divergence from the log-uniform prior is that of the scales.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.2 and appendix B.

    Args:
        loc: the means M, shape ``batch_shape + event_shape``.
        log_alpha: log variance of the scales, a number or a tensor that broadcasts to ``[in]``.
        event_dim: number of trailing dimensions of `loc` that form one weight; all of them if None.
        units: which axis of the weight indexes input units; ``[out, in, ...]`` by default.

    Raises:
        ValueError: `loc` has no dimensions, or `units` do not fit its shape; or, if arguments are validated, a value is NaN
            or infinite, or `log_alpha` does not broadcast.
        TypeError: if arguments are validated: an argument is of another type.
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
        super().__init__(loc, event_dim=event_dim, per="input", units=units, validate_args=validate_args)
        if self.validates(validate_args):
            check_log_alpha(log_alpha, self.noise_shape, "the scales")
        self.log_alpha: Tensor = torch.as_tensor(log_alpha, dtype=loc.dtype, device=loc.device)

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
        """The constant is left out once per input unit."""
        return ConstantLeftOut((self.batch_shape + self.noise_shape).numel(), "units")

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape + self.noise_shape
        return self.over_units(self._scales(shape, self.loc.dtype)) * self.loc

    def _scales(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return 1 + torch.exp(self.log_alpha / 2) * torch.randn(shape, dtype=dtype, device=self.loc.device)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "type A has no density over weights: the weights of an input unit lie on a line. Use priors.LogUniform and "
            "train with pyrodrop.fit, which needs no density as Pyro's ELBOs do, or use type B"
        )
