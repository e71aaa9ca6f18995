"""The kernel of an infinitely wide network, as a kernel of GPyTorch: `pyrodrop.priors.infinite_width` has its equations.

Dropout. A sample of W has one mask for all x, and z^2 = z, so E[z_k g(h_k(x)) z_k g(h_k(x'))] = (1 - drop_rate) E[g g'] for
equal and different x: the rate scales the variance of the next layer. (One mask per example, as in a layer in training,
would give (1 - drop_rate)^2 for different x: another process, with additional white noise.) The input is not masked: its few
units do not average out, and every input mask gives a different Gaussian process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from pyrodrop.checks import known
from pyrodrop.distributions.coins import check_drop_rate
from pyrodrop.priors.infinite_width import LARGEST, SECOND_MOMENTS, InfiniteWidth


class NetworkKernel(InfiniteWidth, Kernel):
    """Covariance of an infinitely wide network's output under the prior of its weights.

    Args:
        activation: ``relu`` or ``erf``.
        weight_variance: v_0 ... v_L, positive: the variance of a weight times its fan-in. L is the number of hidden
            layers; with L = 0 the model is linear. v_0 is a number, or a sequence v_01 ... v_0Q with one per column of x.
        bias_variance: c_0 ... c_L, at least 0. A variance of 0 (no bias) is not learned.
        drop_rate: drop rate of the hidden units in [0, 1): one value for all layers, or L values. It is not learned.
        gain: a in ``erf(a u)``; must be 1 for ReLU, whose gain is a factor of the variances.

    The logarithms of the variances are learned in float64. A tanh bounds the variances to 1e-20 ... 1e20, as the evidence
    often has its maximum at infinity. In a ReLU network without biases only the product of the v_l is identified.

    Raises:
        ValueError: an unknown activation, lengths that do not agree, or a value outside its range.
    """

    has_lengthscale = False

    def __init__(
        self,
        activation: str,
        weight_variance: Sequence[float | Sequence[float]],
        bias_variance: Sequence[float],
        *,
        drop_rate: float | Sequence[float] = 0.0,
        gain: float = 1.0,
    ) -> None:
        known(activation, SECOND_MOMENTS, "activation with a network kernel")
        super().__init__(activation, weight_variance, bias_variance, drop_rate=drop_rate, gain=gain)
        first, *others = weight_variance
        weights = [*(first if isinstance(first, Sequence) else [first]), *others]
        _check(weights, self.columns, bias_variance, 1 - self.keep_rate, self.gain)
        if activation == "relu" and self.gain != 1:
            raise ValueError(f"gain must be 1 for relu, whose gain is part of the weight variances; got {self.gain}")

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        if params.get("last_dim_is_batch"):
            raise ValueError("NetworkKernel needs all columns of x at once; got last_dim_is_batch=True")
        return self.covariance(x1, x2, diagonal=diag)


def _check(weights: Sequence[Any], columns: int, biases: Sequence[float], rates: Tensor, gain: float) -> None:
    layers = len(weights) - columns + 1
    if not layers == len(biases) == len(rates) + 1:
        raise ValueError(
            "a network with L hidden layers needs L + 1 weight variances, L + 1 bias variances and L drop rates; got "
            f"{layers}, {len(biases)} and {len(rates)}"
        )
    if not all(_allowed(v) for v in weights):
        raise ValueError(f"weight variances must lie in (1e-20, 1e20); got {weights}")
    if not all(v == 0 or _allowed(v) for v in biases):
        raise ValueError(f"bias variances must be 0 or lie in (1e-20, 1e20); got {list(biases)}")
    if not (math.isfinite(gain) and gain > 0):
        raise ValueError(f"gain must be positive and finite; got {gain}")
    if len(rates):  # a network without hidden layers has none
        check_drop_rate(rates)


def _allowed(variance: float) -> bool:
    return variance > 0 and abs(math.log(variance)) < LARGEST
