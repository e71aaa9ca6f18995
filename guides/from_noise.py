"""A stochastic regulariser of one's own as a posterior.

    W = g(M, e),   e ~ noise(M)

Psaros, Dropout as variational inference, section 4: other regularisers are other reparameterisations g. The ELBO's
divergence is the user's Reg(M), up to a constant that only they know; or Monte Carlo, if they give the density of W. A
prior with latent scales needs the density: Reg(M) is no function of them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import Pushforward
from pyrodrop.divergences import NoDivergence
from pyrodrop.guides.guide import Guide, HasWeights
from pyrodrop.modules import ParameterTree


class FromNoise(Guide):
    """The guide that `from_noise` makes of a model."""

    def __init__(
        self,
        model: HasWeights,
        g: Callable[[Tensor, Tensor], Tensor],
        noise: Callable[[Tensor], TorchDistribution],
        regularizer: Callable[[Tensor], Tensor] | None,
        density: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> None:
        super().__init__(model)
        if regularizer is not None and self.hyper_sites:
            raise NoDivergence(
                "a regularizer stands in for the divergence from a prior that is known; here the prior's scales are latent "
                f"(of {', '.join(map(repr, self.hyper_sites))}), of which Reg of a weight's parameters is no function: "
                "give a density instead, for a Monte Carlo divergence, or a prior without hyperparameters"
            )
        self.g, self.noise, self.regularizer, self.density = g, noise, regularizer, density
        self.loc = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        return Pushforward(self.loc[name], self.g, self.noise, self.regularizer, self.density)


def from_noise(
    g: Callable[[Tensor, Tensor], Tensor],
    noise: Callable[[Tensor], TorchDistribution],
    *,
    regularizer: Callable[[Tensor], Tensor] | None = None,
    density: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[[HasWeights], FromNoise]:
    """A guide, to be called with a model, that draws every weight as ``g(loc, noise)``.

    Args:
        g: from a weight's parameters and a draw of noise to the weight. Leading dimensions of the noise are draws.
        noise: from a weight's parameters to the law of its noise, batch or event shaped as g wants it.
        regularizer: Reg, from a weight's parameters to the number that stands in for its divergence.
        density: from a weight and its parameters to the log density of the weight, for a Monte Carlo divergence.

    Raises:
        ValueError: neither regularizer nor density, or both; when the guide is made, a regularizer under a prior whose
            scales are latent.
    """
    if (regularizer is None) == (density is None):
        raise ValueError(
            "from_noise needs a regularizer, Reg of the parameters, or a density of the weight for a Monte Carlo "
            f"divergence, one of them; got {'both' if regularizer else 'neither'}"
        )
    return lambda model: FromNoise(model, g, noise, regularizer, density)
