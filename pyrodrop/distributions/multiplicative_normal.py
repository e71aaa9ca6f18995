"""Gaussian dropout with independent noise (type B), also with means set to 0 where noise dominates, and pruned; and with
correlated noise (type A, `CorrelatedNormal`).

    w_ij = m_ij (1 + sqrt(alpha_ij) e_ij),   e_ij ~ N(0, 1),   so   w_ij ~ N(m_ij, alpha_ij m_ij^2)

alpha is one number, one per input unit (the caller reshapes it to broadcast against the weight), or one per weight.

    CutNormal       w_ij ~ N(m_ij [ln alpha_ij < threshold], alpha_ij m_ij^2)
    PrunedNormal    w_ij = m_ij (1 + sqrt(alpha_ij) e_ij)  if kept,   0 otherwise

A weight that is cut, whose ln alpha is at or above the threshold, keeps its noise and loses its mean, so training uses the
network that remains after pruning, plus that noise. The mean m_ij of such a weight then gets a gradient only from the KL
divergence, which pulls it towards 0, so a cut weight seldom returns. In the released code of Molchanov et al. this is the
option ``train_clip``. As in that code, the KL divergences from the log-uniform prior and from ARD with a variance per
weight are computed as if no weight were cut. This is an upper bound on the KL divergence of this distribution, whose term
for a cut weight is 0; the excess is at most .025 nats per weight at threshold 3.

No noise is sampled for pruned weights.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import ConstantLeftOut, NoiseForm, Size, WeightDistribution, check_broadcast


class MultiplicativeNormal(WeightDistribution):
    """Independent Gaussians whose standard deviations are proportional to their means.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.1.

    Args:
        loc: the means M, of the shape of the weight.
        log_alpha: log of the variance divided by the squared mean; a number or a tensor that broadcasts to `loc`.

    Raises:
        ValueError: `loc` has no dimensions, or `log_alpha` does not broadcast.
    """

    def __init__(self, loc: Tensor, log_alpha: Tensor | float) -> None:
        super().__init__(loc)
        check_broadcast(log_alpha, "log_alpha", loc.shape, "loc")
        self.log_alpha: Tensor = torch.as_tensor(log_alpha, dtype=loc.dtype, device=loc.device)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.log_alpha.exp() * self.loc**2

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm(lambda: self.mean, variance=lambda: self.variance)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)  # type: ignore[arg-type]
        return self.loc * (1 + torch.exp(self.log_alpha / 2) * noise)

    def log_prob(self, value: Tensor) -> Tensor:
        log_variance = self.log_variance
        quadratic = (value - self.mean) ** 2 * torch.exp(-log_variance)
        return -self.total_weights(0.5 * (quadratic + log_variance + math.log(2 * math.pi)))

    @property
    def log_variance(self) -> Tensor:
        """ln(alpha m^2), ``batch_shape + event_shape``; finite also where a mean is 0."""
        return (self.log_alpha + torch.log(self.loc**2 + torch.finfo(self.loc.dtype).tiny)).expand(self.loc.shape)

    def entropy(self) -> Tensor:
        """Differential entropy in nats."""
        return self.total_weights(0.5 * (self.log_variance + math.log(2 * math.pi * math.e)))


class CutNormal(MultiplicativeNormal):
    """Independent Gaussians with mean 0 where ln alpha is at or above a threshold.

    References:
        Molchanov, Ashukha & Vetrov (2017), https://arxiv.org/abs/1701.05369.

    Args:
        loc, log_alpha: see `MultiplicativeNormal`.
        threshold: weights with ln alpha at or above it have mean 0.

    Raises:
        ValueError: see `MultiplicativeNormal`.
    """

    def __init__(
        self,
        loc: Tensor,
        log_alpha: Tensor | float,
        threshold: float,
    ) -> None:
        self.threshold: float = threshold
        super().__init__(loc, log_alpha)

    @property
    def mean(self) -> Tensor:
        return self.loc * (self.log_alpha < self.threshold)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)  # type: ignore[arg-type]
        return self.mean + self.loc * torch.exp(self.log_alpha / 2) * noise


class PrunedNormal(MultiplicativeNormal):
    """Independent Gaussians and zeros. The zeros are atoms, so there is no density and no KL divergence from any prior.

    Args:
        loc: the means, of the shape of the weight.
        log_alpha: log of the variance divided by the squared mean, shape ``event_shape``.
        keep: boolean mask of the weights that are kept, shape ``event_shape``.
    """

    def __init__(self, loc: Tensor, log_alpha: Tensor, keep: Tensor) -> None:
        self.keep = keep
        self._places = keep.flatten().nonzero()[:, 0]
        super().__init__(torch.where(keep, loc, 0.0), log_alpha)

    def at(self, loc: Tensor) -> Self:
        return super().at(torch.where(self.keep, loc, 0.0))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)  # type: ignore[arg-type]
        loc = self.loc.flatten(-self.keep.dim())[..., self._places]
        deviation = torch.exp(self.log_alpha.flatten()[self._places] / 2)
        batch = shape[: len(shape) - self.keep.dim()]
        noise = torch.randn(*batch, len(self._places), dtype=loc.dtype, device=loc.device)
        value = loc.new_zeros(*batch, self.keep.numel())
        value[..., self._places] = loc * (1 + deviation * noise)
        return value.reshape(shape)


class CorrelatedNormal(WeightDistribution):
    """Weights whose columns are multiplied by one Gaussian scale per input unit.

        W = M diag(s),   s_k ~ N(1, alpha_k)                 M [out, in] or the layout given by `units`, s [in]

    Each sample has one scale per input unit, so all weights of a unit are scaled together: Cov(w_jk, w_lk) = alpha_k m_jk
    m_lk. The marginals equal those of type B. Each unit's weights lie on a line, so the distribution has no density over
    weights; its KL divergence from the log-uniform prior is that of the scales.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.2 and appendix B.

    Args:
        loc: the means M, of the shape of the weight.
        log_alpha: log variance of the scales, a number or a tensor that broadcasts to ``[in]``.
        units: which axis of the weight indexes input units; ``[out, in, ...]`` by default.

    Raises:
        ValueError: `loc` has no dimensions, `units` do not fit its shape, or `log_alpha` does not broadcast.
    """

    def __init__(
        self,
        loc: Tensor,
        log_alpha: Tensor | float,
        *,
        units: InputUnits = InputUnits(),  # noqa: B008
    ) -> None:
        super().__init__(loc, per="input", units=units)
        check_broadcast(log_alpha, "log_alpha", self.noise_shape, "the scales")
        self.log_alpha: Tensor = torch.as_tensor(log_alpha, dtype=loc.dtype, device=loc.device)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.over_units(self.log_alpha.exp().expand(self.noise_shape)) * self.mean**2

    @property
    def noise_form(self) -> NoiseForm:
        if self.columns:
            return NoiseForm(lambda: self.loc, self._scales)
        return NoiseForm(lambda: self.mean, variance=lambda: self.variance)

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
