"""One noise sample per function, the same for every example: samples of functions without samples of whole weights.

    W = M diag(s)      f(x_n, W) = f(x_n s, M)      s one number per input unit, the same for all n

    Bernoulli, theta = 0, by column     s_k in {0, 1}, P(s_k = 1) = 1 - drop_rate
    the same, relaxed (concrete)        s_k in (0, 1)
    type A                              s_k ~ N(1, alpha_k)

The functions have the same distribution as with samples of W. s multiplies either the inputs or the weight, whichever is
smaller. For posteriors that are not of this form (Gaussians, DropConnect, theta > 0) whole weights are sampled. A weight
that is not contracted along its input units (of an embedding that is tied to a linear layer) is multiplied by s.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.checks import instance
from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.coins import keep_mask
from pyrodrop.distributions.weight import noise_form
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class SharedNoise(LazyReparam):
    """Push one sample of unit noise through every map of a weight. It can be used within `torch.vmap` over samples.

    Args:
        noise: s, ``[in]``, a sample of `unit_noise`.

    Raises:
        TypeError: `noise` is no tensor.
    """

    one_weight = True

    def __init__(self, noise: Tensor) -> None:
        self.noise: Tensor = instance(noise, Tensor, "noise", "a tensor, the scales of the input units")

    def pushes(self, q: Any, at: LinearMap) -> bool:
        return at.fits(q)

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if at.f is F.linear and q.loc.numel() < at.x.numel():  # cheaper than multiplying the input
            return at.f(at.x, self.whole(q))
        return at.f(at.x * at.over_inputs(self.noise), q.loc)

    def whole(self, q: Any) -> Tensor:
        return q.over_units(self.noise) * q.loc  # type: ignore[no-any-return]


def unit_noise(q: Any, num_draws: int) -> Tensor | None:
    """Samples of the scales of W = M diag(s).

    Returns:
        s, ``[num_draws, in]``, or None if q is not of this form.
    """
    form = noise_form(q)
    if form is None or form.scales is None or not (form.only_scales and q.columns):
        return None
    shape = torch.Size((num_draws, *q.noise_shape))
    if not isinstance(q, BernoulliMixture) or isinstance(q, RelaxedBernoulliMixture):
        return form.scales(shape, q.loc.dtype)
    if isinstance(q.drop_rate, Tensor) and q.drop_rate.dim() > 0:  # masks, of which there are faster samplers
        return torch.bernoulli(q.keep_rate.expand(shape))
    mask = keep_mask(shape, float(q.drop_rate), device=q.loc.device)
    return mask.view(torch.uint8).to(q.loc.dtype)  # faster than from bool
