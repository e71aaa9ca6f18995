"""Weight decay as a prior.

    loss   L = (1/N) sum_n -ln p(y_n | f_n) + (decay / 2) ||W||^2          W = p M, p the keep rate of the weight's units
    N L    = nll + N decay p^2 / 2 ||M||^2  =  nll + KL + const            KL = p ||M||^2 / (2 sigma^2)
    sigma  = 1 / sqrt(c decay p)

    c = N T                the mean of minus the log likelihood, over N examples with T terms each: nn.CrossEntropyLoss (T
                           tokens or pixels, 1 for a classifier), nn.GaussianNLLLoss (T outputs)
    c = 1                  its sum over all of the data, reduction="sum"; for minibatches of B examples, in which the decay
                           counts once per minibatch, pass weight_decay * N / B
    c = precision N T / 2  nn.MSELoss, the mean of (y - f)^2 over N examples with T outputs each, without a half

The optimisers of PyTorch add ``decay * W`` to the gradient of the loss, which is the gradient of (decay / 2) ||W||^2. Adam
then divides by the size of past gradients, which leads to the same stationary points along another path. AdamW, Muon and
Adafactor shrink weights separately from the gradient step, by an amount that does not depend on the gradient's scale: no
loss, and so no prior, has these stationary points. Gal & Ghahramani (2016), Appendix (arXiv:1506.02157), section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from torch import Tensor

from pyrodrop.checks import by_name, one_of, real
from pyrodrop.likelihoods import Gaussian, Likelihood
from pyrodrop.scaling import Standardize

Loss = Literal["mean_nll", "sum_nll", "mse"]
WeightDecay: TypeAlias = float | Mapping[str, float]


def decay_of(weight_decay: WeightDecay, parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """The weight decay of every parameter.

    Args:
        weight_decay: one number, or a mapping from name patterns to numbers.

    Raises:
        ValueError: a decay is negative or not finite, or a pattern matches no parameter.
        TypeError: `weight_decay` is none of these.
    """
    decays: dict[str, float] = by_name(weight_decay, parameters, "weight_decay")
    return {name: real(value, "weight_decay", f"that of {name}", least=0) for name, value in decays.items()}


def strength(loss: Loss | None, likelihood: Likelihood, num_data: int, output: Tensor) -> float:
    """c above: the factor that turns a loss into minus the log likelihood of the whole data set.

    Args:
        loss: the loss of the training; None is ``mse`` for a Gaussian likelihood and ``mean_nll`` for any other.
        likelihood: the likelihood of the model.
        num_data: N.
        output: outputs of the network for a few examples, ``[n, ...]``.

    Raises:
        ValueError: ``mse`` with another likelihood than a Gaussian with one precision; ``mean_nll`` with missing values.
    """
    distribution = likelihood(output, Standardize())
    terms = (distribution.batch_shape + distribution.event_shape).numel() // len(output)
    plain = type(likelihood) is Gaussian
    loss = one_of(loss, Loss, "loss") if loss is not None else "mse" if plain else "mean_nll"
    if loss == "mse":
        if not plain:
            raise ValueError(f"loss='mse' belongs to likelihoods.Gaussian; got {likelihood.describe()}")
        precision: Tensor = likelihood.precision  # type: ignore[assignment]
        if precision.dim():
            raise ValueError(
                "loss='mse' has one precision for all columns of y; got a likelihood with one for each, "
                f"{likelihood.describe()}"
            )
        return float(precision) * num_data * terms / 2
    return float(num_data * terms) if loss == "mean_nll" else 1.0
