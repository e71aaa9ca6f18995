"""Gaussians whose means are dropped where noise drowns them.

    w_ij ~ N(m_ij [ln alpha_ij < threshold], alpha_ij m_ij^2)

A weight above the threshold keeps its noise and loses its mean: what a network trains with is then, but for that noise, what
is left after the cut, and m_ij gets no gradient but the divergence's, which pulls it to 0: a cut weight seldom returns. In
the released code of Molchanov, Ashukha & Vetrov (2017) this is ``train_clip``.

As in theirs, the divergence from the log-uniform prior and under ARD by weight is counted as if nothing were cut: an upper
bound of this law's own, which is 0 above the threshold, and too much by at most .025 a weight at threshold 3.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from pyrodrop.distributions.multiplicative_normal import MultiplicativeNormal
from pyrodrop.distributions.weight import Size


class CutNormal(MultiplicativeNormal):
    """Independent Gaussians, of mean 0 where ln alpha is at or above a threshold.

    Args:
        loc, log_alpha, event_dim: as of `MultiplicativeNormal`.
        threshold: bound of ln alpha.
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
        self.threshold = threshold
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
