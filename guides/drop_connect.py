"""DropConnect as a posterior: weights are dropped independently of each other.

    W = M * Z + theta E,   Z_ij ~ Bernoulli(1 - drop_rate)      M, Z [out, in]

Wan et al. (2013), Regularization of Neural Networks using DropConnect, https://proceedings.mlr.press/v28/wan13.html. This is
the Bernoulli mixture with columns of one weight each, so the statements on the KL divergence in `BernoulliDropout` apply.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyrodrop.guides.bernoulli_dropout import BernoulliDropout
from pyrodrop.guides.guide import HasWeights, RateKind


class DropConnect(BernoulliDropout):
    """Randomly drops individual weights.

    Args:
        model: the model whose weights are inferred.
        drop_rate: probability of dropping a weight, in [0, 1): one rate for all weights, or a mapping from name patterns to
            rates. Vectors are never dropped. Every other tensor with a prior is, including class tokens and scales, unless
            its rate is 0.
        theta: standard deviation of the mixture components, at least 0.

    Raises:
        ValueError: a rate is outside [0, 1), `theta` is negative, or a name pattern matches no weight.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.
    """

    rate_kind = RateKind("drop_rate", "probability of dropping a weight", learned=False)

    def __init__(self, model: HasWeights, drop_rate: float | Mapping[str, float] = 0.5, *, theta: float = 0.0) -> None:
        super().__init__(model, drop_rate, theta=theta, per="weight")
