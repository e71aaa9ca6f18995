"""The kernel of an infinitely wide network: its prior over functions is a Gaussian process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

LARGEST = 20 * math.log(10)  # bound of the logarithm of a variance
TANH_GAIN = math.sqrt(math.pi) / 2  # gives erf(a u) the slope of tanh at 0; the two differ by at most 0.0354


class InfiniteWidth(nn.Module):
    """The kernel, with variances whose logarithms are learned in float64 and bounded by a tanh.

        h_0(x) = W_0 x + b_0                           W_l ~ N(0, v_l / fan-in),   b_l ~ N(0, c_l)
        h_l(x) = W_l diag(z_l) g(h_(l-1)(x)) + b_l     z_l ~ Bernoulli(1 - drop_rate_l), one per unit    l = 1 ... L

        K_0(x, x') = c_0 + sum_q v_0q x_q x'_q / Q               v_0q = v_0, or one variance per column of x (ARD)
        K_l(x, x') = c_l + v_l (1 - drop_rate_l) G(K_(l-1)(x, x), K_(l-1)(x, x'), K_(l-1)(x', x'))

        G(k, c, k') = E[g(u) g(u')],   (u, u') ~ N(0, [[k, c], [c, k']])
          relu         sqrt(k k') (sin t + (pi - t) cos t) / 2 pi,     cos t = c / sqrt(k k')
          erf(a u)     (2 / pi) arcsin(2 a^2 c / sqrt((1 + 2 a^2 k) (1 + 2 a^2 k')))

    With L = 1, c_1 = 0 and v_1 = 1 it is K(x, x') = int p(w) p(b) g(w.x + b) g(w.x' + b) dw db.

    References:
        Williams (1997), Computing with Infinite Networks: erf.
        Cho & Saul (2009), Kernel Methods for Deep Learning, eq. 3 and 6: ReLU, order 1, halved, as E[relu^2] is half of
            E[u^2].
        Lee et al. (2018), Deep Neural Networks as Gaussian Processes, https://arxiv.org/abs/1711.00165, eq. 4-5: depth.

    Args:
        activation: ``relu`` or ``erf``.
        weight_variance: v_0 ... v_L, positive; v_0 is a number, or a sequence with one per column of x.
        bias_variance: c_0 ... c_L. A variance of 0 is not learned.
        drop_rate: one value for all hidden layers, or L values.
        gain: a in ``erf(a u)``.
    """

    keep_rate: Tensor
    has_bias: Tensor
    raw_weight_variance: nn.Parameter
    raw_bias_variance: nn.Parameter

    def __init__(
        self,
        activation: str,
        weight_variance: Sequence[float | Sequence[float]],
        bias_variance: Sequence[float],
        *,
        drop_rate: float | Sequence[float] = 0.0,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.activation: str = activation
        first, *others = weight_variance
        self.hidden_layers: int = len(others)
        self.columns: int = len(first) if isinstance(first, Sequence) else 1  # variances of the first layer
        weights = torch.tensor([*(first if isinstance(first, Sequence) else [first]), *others]).double()
        biases = torch.tensor(bias_variance).double()
        rates = torch.as_tensor(drop_rate).double()
        self.gain = gain
        self.register_buffer("keep_rate", 1 - (rates.expand(self.hidden_layers) if rates.dim() == 0 else rates))
        self.register_buffer("has_bias", biases > 0)
        start = {"weight_variance": weights, "bias_variance": torch.where(biases > 0, biases, 1.0)}
        for name, value in start.items():
            raw = LARGEST * torch.atanh(value.log() / LARGEST)
            self.register_parameter(f"raw_{name}", nn.Parameter(raw))

    @property
    def weight_variance(self) -> Tensor:
        """v_0 ... v_L, or v_01 ... v_0Q, v_1 ... v_L."""
        return _variance(self.raw_weight_variance)

    @property
    def bias_variance(self) -> Tensor:
        """c_0 ... c_L."""
        return torch.where(self.has_bias, _variance(self.raw_bias_variance), 0.0)

    def covariance(self, x1: Tensor, x2: Tensor, *, diagonal: bool = False) -> Tensor:
        """K(x1, x2), ``[..., N, M]`` for x ``[..., N, Q]`` and ``[..., M, Q]``; its diagonal ``[..., N]`` if `diagonal`."""
        x1, x2 = x1.double(), x2.double()
        v, c = self.weight_variance, self.bias_variance
        inner, hidden = v[: self.columns], v[self.columns :]
        if self.columns > 1:
            if x1.shape[-1] != self.columns:
                raise ValueError(
                    f"x must have a column for each of the {self.columns} variances of the first layer; got {x1.shape[-1]}"
                )
            x1, x2, inner = x1 * inner.sqrt(), x2 * inner.sqrt(), torch.ones_like(inner)
        first, second = x1.square().mean(-1), x2.square().mean(-1)
        if diagonal:
            cross = (x1 * x2).mean(-1)
        else:
            cross = x1 @ x2.mT / x1.shape[-1]
            first, second = first.unsqueeze(-1), second.unsqueeze(-2)
        first, cross, second = (c[0] + inner[0] * k for k in (first, cross, second))
        moment = SECOND_MOMENTS[self.activation]
        for layer in range(self.hidden_layers):
            scale, a2 = hidden[layer] * self.keep_rate[layer], self.gain**2
            left, right = a2 * first, a2 * second
            cross = c[layer + 1] + scale * moment(left, a2 * cross, right)
            first, second = (c[layer + 1] + scale * moment(k, k, k) for k in (left, right))
        return cross


def relu_moment(first: Tensor, cross: Tensor, second: Tensor) -> Tensor:
    """E[relu(u) relu(u')] of zero-mean Gaussians with variances `first` and `second` and covariance `cross`.

    The angle t is computed from its sine and cosine. At repeated points, a sine of 1e-7, whose error is of the order of its
    cube, keeps the gradient finite.
    """
    product = first * second
    sine = torch.maximum(product - cross.square(), 1e-14 * product).clamp_min(1e-300).sqrt()
    return (sine + (math.pi - torch.atan2(sine, cross)) * cross) / (2 * math.pi)


def erf_moment(first: Tensor, cross: Tensor, second: Tensor) -> Tensor:
    """E[erf(u) erf(u')] of zero-mean Gaussians with variances `first` and `second` and covariance `cross`.

    The arcsin is computed as arctan(2c / sqrt(1 + 2k + 2k' + 4 (k k' - c^2))), which is accurate at repeated points and has
    a finite gradient there, as the root is at least 1.
    """
    determinant = (first * second - cross.square()).clamp_min(0)
    return 2 / math.pi * torch.atan(2 * cross / (1 + 2 * (first + second) + 4 * determinant).sqrt())


SECOND_MOMENTS = {"relu": relu_moment, "erf": erf_moment}


def _variance(raw: Tensor) -> Tensor:
    return (LARGEST * torch.tanh(raw / LARGEST)).exp()
