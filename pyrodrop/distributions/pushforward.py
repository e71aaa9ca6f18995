"""A weight as a function of its parameters and noise.

    W = g(M, e),   e ~ noise(M)

Every stochastic regulariser has this form (Psaros, Dropout as variational inference, section 3: w = g(theta, eps)).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.weight import ConstantLeftOut, Size, WeightDistribution


class Pushforward(WeightDistribution):
    """The distribution of ``g(loc, noise)``.

    Args:
        loc: the parameters M, of the shape of the weight.
        g: function of M and a sample of the noise that returns a weight; must broadcast over leading dimensions of the
            noise.
        noise: function of M that returns the distribution of the noise.
        regularizer: function of M that returns Reg(M), a number that replaces the KL divergence.
        event_dim: number of trailing dimensions of `loc` that form one weight; all of them if None.

    Raises:
        ValueError: on sampling, if `g` returns a tensor that does not have the shape of the weight.
    """

    def __init__(
        self,
        loc: Tensor,
        g: Callable[[Tensor, Tensor], Tensor],
        noise: Callable[[Tensor], TorchDistribution],
        regularizer: Callable[[Tensor], Tensor],
        *,
        event_dim: int | None = None,
    ) -> None:
        super().__init__(loc, event_dim=event_dim)
        self.g: Callable[[Tensor, Tensor], Tensor] = g
        self.noise: Callable[[Tensor], TorchDistribution] = noise
        self.regularizer: Callable[[Tensor], Tensor] = regularizer

    @property
    def mean(self) -> Tensor:
        """g at the mean of the noise. This is the mean of the weight if g is affine in the noise."""
        return self.g(self.loc, self.noise(self.loc).mean.to(self.loc.device))

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        """The constant is unknown. It is equal for the same functions, compared by identity, and the same shape."""
        functions, name = (self.g, self.noise, self.regularizer), type(self.regularizer).__name__
        unit = f"weights by {getattr(self.regularizer, '__qualname__', name)}"
        return ConstantLeftOut(
            (self.batch_shape + self.event_shape).numel(), unit, (*map(id, functions), tuple(self.event_shape))
        )

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = self.noise(self.loc)
        draw = noise.rsample(torch.Size(sample_shape)) if noise.has_rsample else noise.sample(torch.Size(sample_shape))
        value = self.g(self.loc, draw.to(self.loc.device))  # noise of plain numbers is drawn on the CPU
        if value.shape[-len(self.event_shape) :] != self.event_shape:
            raise ValueError(
                f"g(loc, noise) must have the weight's shape {tuple(self.event_shape)}; got {tuple(value.shape)}"
            )
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError("the log density of a Pushforward is unknown")
