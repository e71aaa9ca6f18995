"""A custom stochastic regulariser as a posterior.

    W = g(M, e),   e ~ noise(M)
    L = -beta sum_n ln p(y_n | x_n, W) + Reg(M)

Psaros, Dropout as variational inference, section 4 and eq. 6: each regulariser corresponds to a reparameterisation g. In the
ELBO, the user's Reg(M) replaces the KL divergence, up to an unknown constant. With a density of W in place of Reg(M), write
a `Guide` whose `posterior` has a `log_prob`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution

from pyrodrop.checks import HasWeights
from pyrodrop.distributions import ConstantLeftOut, WeightDistribution
from pyrodrop.distributions.weight import Size
from pyrodrop.divergences import Convention, NoDivergence, pair
from pyrodrop.guides.guide import Guide
from pyrodrop.modules import ParameterTree


class FromNoise(Guide):
    """The guide that `from_noise` creates for a model; see `from_noise` for the arguments."""

    def __init__(
        self,
        model: HasWeights,
        g: Callable[[Tensor, Tensor], Tensor],
        noise: Callable[[Tensor], TorchDistribution],
        regularizer: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(model)
        if self.hyper_sites:
            raise NoDivergence(
                "a regularizer replaces the KL divergence from a fixed prior, but here the prior's scales are latent "
                f"(for {', '.join(map(repr, self.hyper_sites))}): use a prior without hyperparameters"
            )
        self.functions = (g, noise, regularizer)
        self.loc: ParameterTree = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        return Pushforward(self.loc[name], *self.functions)


def from_noise(
    g: Callable[[Tensor, Tensor], Tensor],
    noise: Callable[[Tensor], TorchDistribution],
    *,
    regularizer: Callable[[Tensor], Tensor],
) -> Callable[[HasWeights], FromNoise]:
    """Define a guide that samples every weight as ``g(loc, noise)``.

    Args:
        g: function of the parameters of a weight and a sample of the noise that returns the weight. The noise can have
            leading dimensions, one index per sample.
        noise: function of the parameters of a weight that returns the distribution of its noise, with the batch and event
            shape that `g` expects.
        regularizer: Reg, a function of the parameters of a weight that returns the number that replaces its KL divergence.

    Returns:
        A function that takes a model and returns its guide.

    Raises:
        NoDivergence: when the guide is created, for a prior whose scales are latent.
    """
    return lambda model: FromNoise(model, g, noise, regularizer)


class Pushforward(WeightDistribution):
    """The distribution of ``g(loc, noise)``.

    Args:
        loc: the parameters M, of the shape of the weight.
        g: function of M and a sample of the noise that returns a weight; must broadcast over leading dimensions of the
            noise.
        noise: function of M that returns the distribution of the noise.
        regularizer: function of M that returns Reg(M), a number that replaces the KL divergence.

    Raises:
        ValueError: on sampling, if `g` returns a tensor that does not have the shape of the weight.
    """

    def __init__(
        self,
        loc: Tensor,
        g: Callable[[Tensor, Tensor], Tensor],
        noise: Callable[[Tensor], TorchDistribution],
        regularizer: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(loc)
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


@pair(Pushforward, Distribution, Convention("up_to_constant", "the user's regulariser replaces the KL divergence"))
def _regularizer(q: Pushforward, p: Distribution) -> Tensor:
    return q.regularizer(q.loc)
