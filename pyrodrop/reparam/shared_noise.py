"""One noise a draw, the same for every example: draws of functions without draws of weights.

    W = M diag(s)      f(x_n, W) = f(x_n s, M)      s one number per input unit, the same for all n

    Bernoulli, theta = 0, by column     s_k in {0, 1}, P(s_k = 1) = 1 - drop_rate
    the same, relaxed (concrete)        s_k in (0, 1)
    type A                              s_k ~ N(1, alpha_k)

The distribution is that of drawing W: only the multiplication has moved. It goes to whichever is smaller, the examples'
inputs or the weight; a layer that is narrower than the number of examples is cheaper multiplied, and T draws of it are then
one matrix product. Posteriors without such an s (Gaussian ones, DropConnect, theta > 0) have their weights drawn, and a
weight that is used otherwise than along its input units (an embedding's, tied to a linear layer) is multiplied by s itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.noise_form import noise_form
from pyrodrop.masks import keep_mask
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class SharedNoise(LazyReparam):
    """Push one draw's unit noise, ``[in]``, through every map of a weight. May be used within `torch.vmap` over draws.

    Args:
        noise: s, of a law for which `unit_noise` has one.
    """

    one_weight = True

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise

    def pushes(self, q: Any, at: LinearMap) -> bool:
        return at.fits(q)

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if weight_is_smaller(at, q.loc):
            return product(at.x, self.whole(q))
        scaled = at.x * at.over_inputs(self.noise)
        return product(scaled, q.loc) if at.f is F.linear else at.f(scaled, q.loc)

    def whole(self, q: Any) -> Tensor:
        return q.over_units(self.noise) * q.loc  # type: ignore[no-any-return]


def weight_is_smaller(at: LinearMap, loc: Tensor) -> bool:
    """Whether noise is cheaper on the weight of a matrix product than on its input."""
    return at.f is F.linear and loc.numel() < at.x.numel()


def unit_noise(q: Any, num_draws: int) -> Tensor | None:
    """s of that many draws, ``[num_draws, in]``, or None where the weight is not M diag(s) with an s per input unit."""
    form = noise_form(q)
    if form is None or form.scales is None or not (form.only_scales and q.columns):
        return None
    shape = torch.Size((num_draws, *q.noise_shape))
    if isinstance(q, BernoulliMixture) and not isinstance(q, RelaxedBernoulliMixture):
        return _masks(q, shape)
    return form.scales(shape, q.loc.dtype)


def _masks(q: BernoulliMixture, shape: torch.Size) -> Tensor:
    """The scales of `NoiseForm` for dropout masks, from a faster sampler."""
    if isinstance(q.drop_rate, Tensor) and q.drop_rate.dim() > 0:
        return torch.bernoulli(q.keep_rate.expand(shape))
    return keep_mask(shape, float(q.drop_rate), device=q.loc.device).to(q.loc.dtype)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T. Without gradients, `torch.vmap` over draws multiplies once what is the same for all of them."""
    if torch.is_grad_enabled():
        return F.linear(x, weight)
    return _Product.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


class _Product(torch.autograd.Function):
    """For an x without and a W with draws, ``[N, in]`` and ``[T, out, in]``, one product of N rows and T out columns."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        x_dim, weight_dim = in_dims
        if weight_dim is None:
            return F.linear(x.movedim(x_dim, 0), weight), 0
        weight = weight.movedim(weight_dim, 0)
        if x_dim is None:
            y = F.linear(x, weight.flatten(0, 1))
            return y.unflatten(-1, weight.shape[:2]), y.dim() - 1
        x = x.movedim(x_dim, 0)
        y = torch.bmm(x.reshape(len(x), -1, x.shape[-1]), weight.mT)
        return y.reshape(*x.shape[:-1], -1), 0
