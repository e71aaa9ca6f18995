"""A Gaussian over a weight tensor with a low-rank plus diagonal covariance."""

from __future__ import annotations

import torch
from pyro.distributions import LowRankMultivariateNormal
from torch import Tensor

from pyrodrop.distributions.weight import NoiseForm, Size, WeightDistribution


class LowRankNormal(WeightDistribution):
    """A low-rank multivariate normal distribution whose event has the shape of a weight.

        vec(W) ~ N(vec(M), F F^T + diag(v))         F [weights, rank], v [weights]

    References:
        Ong, Nott & Smith (2018), https://arxiv.org/abs/1701.03208.

    Args:
        loc: the means M, of the shape of the weight.
        factor: F, ``[weights, rank]``, where `weights` is the number of elements of one weight tensor.
        diagonal: v, ``[weights]``, positive.
    """

    def __init__(
        self,
        loc: Tensor,
        factor: Tensor,
        diagonal: Tensor,
    ) -> None:
        super().__init__(loc)
        self.factor: Tensor = factor
        self.diagonal: Tensor = diagonal

    @property
    def _flat(self) -> LowRankMultivariateNormal:
        loc = self.loc.flatten(-len(self.event_shape))
        return LowRankMultivariateNormal(loc, self.factor, self.diagonal, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (self.factor.square().sum(-1) + self.diagonal).reshape(self.event_shape).expand(self.loc.shape)

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm(
            lambda: self.loc,
            variance=lambda: self.diagonal.reshape(self.event_shape),
            factors=lambda: (column.reshape(self.event_shape) for column in self.factor.unbind(-1)),
        )

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        draw = self._flat.rsample(torch.Size(sample_shape))
        return draw.reshape(draw.shape[:-1] + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._flat.log_prob(value.flatten(-len(self.event_shape)))

    def entropy(self) -> Tensor:
        """Differential entropy in nats."""
        return self._flat.entropy()
