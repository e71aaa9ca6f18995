"""Flipout: one weight draw a minibatch, made nearly independent between examples by random signs.

    y_n = f(x_n, m) + r_n f(x_n s_n, w - m),   w ~ q,   r_n, s_n signs, one an output and an input unit

Wen, Vicol, Ba, Tran & Grosse (2018), eq. 4. Needs a perturbation w - m that is independent between weights and symmetric.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from pyrodrop.distributions import MultiplicativeNormal
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class FlipoutReparam(LazyReparam):
    """Flip the signs of one draw's deviations by example: mean field, type B and sparse posteriors."""

    def push(self, q: Any, at: LinearMap) -> Tensor:
        independent = isinstance(q, MultiplicativeNormal) or (
            isinstance(q, Independent) and isinstance(q.base_dist, Normal)
        )
        if not independent:
            raise ValueError(
                "flipout needs deviations that are independent between weights and symmetric, as of MeanField, type B or "
                f"SparseDropout; got {type(q).__name__}: use estimator='local' or 'per_example'"
            )
        deviation = q.rsample() - q.mean
        y = at.f(at.x * at.unit_noise(lambda shape: _signs(shape, at.x)), deviation)
        examples = y.shape[:-1] if at.outputs == -1 else y.shape[:1]
        outputs = y.shape[at.outputs]
        return at.f(at.x, q.mean) + at.over_outputs(_signs(torch.Size((*examples, outputs)), y)) * y


def _signs(shape: torch.Size, like: Tensor) -> Tensor:
    return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1
