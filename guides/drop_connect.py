"""DropConnect as a posterior: every weight is dropped on its own.

    W = M * Z + theta E,   Z_ij ~ Bernoulli(1 - drop_rate)      M, Z [out, in]

Wan et al. (2013), Regularization of Neural Networks using DropConnect. The Bernoulli mixture with columns of one weight,
so KL to a Gaussian prior is as of `BernoulliDropout`: at theta = 0 up to a constant of the number of weights alone, exact
above.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyro.distributions import TorchDistribution

from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.bernoulli_dropout import BernoulliDropout
from pyrodrop.guides.guide import HasWeights, RateKind


class DropConnect(BernoulliDropout):
    """Weights are dropped one by one.

    Args:
        model: the model whose weights to infer.
        drop_rate: probability of dropping a weight, in [0, 1): one for all, or by weight name. Vectors are never dropped;
            every other parameter is, a class token or a scale too, unless its rate is 0.
        theta: standard deviation of the mixture, at least 0; 0 is the limit.
    """

    rate_kind = RateKind("drop_rate", "probability of dropping a weight", learned=False)

    def __init__(self, model: HasWeights, drop_rate: float | Mapping[str, float] = 0.5, *, theta: float = 0.0) -> None:
        super().__init__(model, drop_rate, theta=theta)

    def _check_units(self, model: HasWeights) -> None:
        """Weights that are dropped one by one need no units."""

    def posterior(self, name: str) -> TorchDistribution:
        return BernoulliMixture(self.loc[name], self._rate(name), self.theta, per="weight")
