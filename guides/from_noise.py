"""A custom stochastic regulariser as a posterior.

    W = g(M, e),   e ~ noise(M)

Psaros, Dropout as variational inference, section 4: each regulariser corresponds to a reparameterisation g. In the ELBO,
the user's Reg(M) replaces the KL divergence, up to an unknown constant. If the user gives the density of W instead, the KL
divergence is estimated by Monte Carlo. A prior with latent scales needs the density, because Reg(M) does not depend on the
scales.
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
        regularizer: Callable[[Tensor], Tensor] | None,
        density: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> None:
        super().__init__(model)
        if regularizer is not None and self.hyper_sites:
            raise NoDivergence(
                "a regularizer replaces the KL divergence from a fixed prior, but here the prior's scales are latent "
                f"(for {', '.join(map(repr, self.hyper_sites))}), and the regularizer does not depend on them: pass "
                "density= instead, for a Monte Carlo estimate of the KL divergence, or use a prior without hyperparameters"
            )
        self.g: Callable[[Tensor, Tensor], Tensor] = g
        self.noise: Callable[[Tensor], TorchDistribution] = noise
        self.regularizer = regularizer
        self.density = density
        self.loc: ParameterTree = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        return Pushforward(self.loc[name], self.g, self.noise, self.regularizer, self.density)


def from_noise(
    g: Callable[[Tensor, Tensor], Tensor],
    noise: Callable[[Tensor], TorchDistribution],
    *,
    regularizer: Callable[[Tensor], Tensor] | None = None,
    density: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[[HasWeights], FromNoise]:
    """Define a guide that samples every weight as ``g(loc, noise)``.

    Args:
        g: function of the parameters of a weight and a sample of the noise that returns the weight. The noise can have
            leading dimensions, one index per sample.
        noise: function of the parameters of a weight that returns the distribution of its noise, with the batch and event
            shape that `g` expects.
        regularizer: Reg, a function of the parameters of a weight that returns the number that replaces its KL divergence.
        density: function of a weight and its parameters that returns the log density of the weight, for a Monte Carlo
            estimate of the KL divergence.

    Returns:
        A function that takes a model and returns its guide.

    Raises:
        ValueError: neither or both of `regularizer` and `density` are given. When the guide is created: a regularizer is
            used with a prior whose scales are latent.
    """
    if (regularizer is None) == (density is None):
        raise ValueError(
            "from_noise needs either regularizer, a function of the parameters, or density, the log density of the weight "
            f"for a Monte Carlo estimate of the KL divergence, one of them; got {'both' if regularizer else 'neither'}"
        )
    return lambda model: FromNoise(model, g, noise, regularizer, density)
