"""A custom stochastic regulariser as a posterior.

    W = g(M, e),   e ~ noise(M)

Psaros, Dropout as variational inference, section 4: each regulariser corresponds to a reparameterisation g. In the ELBO,
the user's Reg(M) replaces the KL divergence, up to an unknown constant. With a density of W in place of Reg(M), write a
`Guide` whose `posterior` has a `log_prob`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights
from pyrodrop.distributions import Pushforward
from pyrodrop.divergences import NoDivergence
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
        self.g: Callable[[Tensor, Tensor], Tensor] = g
        self.noise: Callable[[Tensor], TorchDistribution] = noise
        self.regularizer: Callable[[Tensor], Tensor] = regularizer
        self.loc: ParameterTree = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        return Pushforward(self.loc[name], self.g, self.noise, self.regularizer)


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
