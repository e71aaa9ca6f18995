"""A weight as a function of its parameters and noise.

    W = g(M, e),   e ~ noise(M)

What every stochastic regulariser is (Psaros, Dropout as variational inference, section 3: w = g(theta, eps)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.weight import ConstantLeftOut, Size, WeightDistribution


class Pushforward(WeightDistribution):
    """The law of ``g(loc, noise)``.

    Args:
        loc: the parameters M, of the weight's shape.
        g: from M and a draw of noise to a weight; must broadcast over leading dimensions of the noise.
        noise: from M to the law of the noise.
        regularizer: from M to Reg(M), a number that stands in for the divergence.
        density: from W and M to the log density of W, for a divergence by Monte Carlo.
    """

    def __init__(
        self,
        loc: Tensor,
        g: Callable[[Tensor, Tensor], Tensor],
        noise: Callable[[Tensor], TorchDistribution],
        regularizer: Callable[[Tensor], Tensor] | None = None,
        density: Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        event_dim: int | None = None,
    ) -> None:
        super().__init__(loc, event_dim=event_dim)
        self.g, self.noise, self.regularizer, self.density = g, noise, regularizer, density

    @property
    def mean(self) -> Tensor:
        """g at the mean of the noise: exact where g is affine in it."""
        return self.g(self.loc, self.noise(self.loc).mean)

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        """What only the user knows: equal for the same functions, compared by identity, and the same shape."""
        own, name = (self.g, self.noise, self.regularizer), type(self.regularizer).__name__
        unit = f"weights by {getattr(self.regularizer, '__qualname__', name)}"
        return ConstantLeftOut(
            (self.batch_shape + self.event_shape).numel(), unit, (*map(id, own), tuple(self.event_shape))
        )

    def at(self, loc: Tensor) -> Self:
        return type(self)(loc, self.g, self.noise, self.regularizer, self.density, event_dim=len(self.event_shape))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = self.noise(self.loc)
        draw = noise.rsample(torch.Size(sample_shape)) if noise.has_rsample else noise.sample(torch.Size(sample_shape))
        value = self.g(self.loc, draw)
        if value.shape[-len(self.event_shape) :] != self.event_shape:
            raise ValueError(
                f"g(loc, noise) must have the weight's shape {tuple(self.event_shape)}; got {tuple(value.shape)}"
            )
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        if self.density is None:
            raise NotImplementedError("a weight g(loc, noise) has no density unless one is given")
        return self.density(value, self.loc)
