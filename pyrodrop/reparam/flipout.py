"""Flipout: one weight sample per minibatch, made nearly independent between examples by random signs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.distributions.noise_form import noise_form
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class FlipoutReparam(LazyReparam):
    """Flip the signs of one sample's deviations per example: for mean field, type B and sparse posteriors.

        y_n = f(x_n, m) + r_n f(x_n s_n, w - m),   w ~ q,   m = E_q[w],   r_n, s_n in {-1, 1} per output and input unit

    The deviations w - m must be independent between weights and symmetric around 0; then m + r_n s_n^T (w - m) is also a
    sample of q. All rows of an example (tokens, nodes, positions) share its signs, so the joint distribution of the
    example's rows is the one that a weight sample gives them.

    References:
        Wen, Vicol, Ba, Tran & Grosse (2018), https://arxiv.org/abs/1803.04386, eq. 4.
    """

    def keeps(self, q: Any) -> bool:
        return True

    def push(self, q: Any, at: LinearMap) -> Tensor:
        """f(x, w), without bias.

        Raises:
            ValueError: the weights are not independent normal random variables under q (`NoiseForm.independent`).
        """
        form = noise_form(q)
        if form is None or not form.independent:
            raise ValueError(
                "flipout needs deviations that are independent between weights and symmetric, as of MeanField, type B or "
                f"SparseDropout; got {type(q).__name__}: use estimator='local' or 'per_example'"
            )
        deviation = at.once("deviation", lambda: q.rsample() - q.mean, per_example=False)
        y = at.f(at.x * at.unit_noise(lambda shape: _signs(shape, at.x)), deviation)
        shape = torch.Size((*at.batch, y.shape[at.outputs]))
        signs = at.once(f"axis {1 - at.axis}", lambda: _signs(shape, y))
        return at.f(at.x, q.mean) + at.over_outputs(signs) * y


def _signs(shape: torch.Size, like: Tensor) -> Tensor:
    """-1 or 1 with equal probability, with the dtype and device of `like`."""
    return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1
