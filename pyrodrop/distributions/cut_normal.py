"""Gaussians whose means are set to 0 where the noise dominates.

    w_ij ~ N(m_ij [ln alpha_ij < threshold], alpha_ij m_ij^2)

A weight whose ln alpha is at or above the threshold keeps its noise and loses its mean, so training uses the network that
remains after pruning, plus that noise. The mean m_ij of such a weight then gets a gradient only from the KL divergence,
which pulls it towards 0, so a cut weight seldom returns. In the released code of Molchanov, Ashukha & Vetrov (2017),
arXiv:1701.05369, this is the option ``train_clip``.

As in that code, the KL divergences from the log-uniform prior and from ARD with a variance per weight are computed as if
no weight were cut. This is an upper bound on the KL divergence of this distribution, whose term for a cut weight is 0; the
excess is at most .025 nats per weight at threshold 3.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from pyrodrop.arguments import real
from pyrodrop.distributions.multiplicative_normal import MultiplicativeNormal
from pyrodrop.distributions.weight import Size


class CutNormal(MultiplicativeNormal):
    """Independent Gaussians with mean 0 where ln alpha is at or above a threshold.

    Args:
        loc, log_alpha, event_dim: see `MultiplicativeNormal`.
        threshold: weights with ln alpha at or above it have mean 0.

    Raises:
        ValueError: `threshold` is NaN or infinite; also see `MultiplicativeNormal`.
        TypeError: `threshold` is no number.
    """

    def __init__(
        self,
        loc: Tensor,
        log_alpha: Tensor | float,
        threshold: float,
        *,
        event_dim: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.threshold = real(threshold, "threshold", "the bound of ln alpha from which on means are 0")
        super().__init__(loc, log_alpha, event_dim=event_dim, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc * (self.log_alpha < self.threshold)

    def at(self, loc: Tensor) -> Self:
        return type(self)(loc, self.log_alpha, self.threshold, event_dim=len(self.event_shape), validate_args=False)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)  # type: ignore[arg-type]
        return self.mean + self.loc * torch.exp(self.log_alpha / 2) * noise

    def log_prob(self, value: Tensor) -> Tensor:
        log_variance = self.log_variance
        quadratic = (value - self.mean) ** 2 * torch.exp(-log_variance)
        return -self.total_weights(0.5 * (quadratic + log_variance + math.log(2 * math.pi)))
