"""Local noise for prediction: the distribution of every point alone, with the masks of dropout cut from random words.

`LocalReparam` draws from PyTorch's generator entry by entry; here one noise per example, input unit *and draw* is needed,
and for Bernoulli dropout at theta = 0 that is what prediction would wait for. All other noise is that of `LocalReparam`,
whose text says where a point's own distribution is that of a weight draw: for noise by input unit always, for other noise in
networks whose examples are single rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.bernoulli_mixture import never_drops
from pyrodrop.distributions.noise_form import noise_form
from pyrodrop.masks import keep_mask
from pyrodrop.reparam.local import LocalReparam
from pyrodrop.reparam.maps import LinearMap


class MarginalReparam(LocalReparam):
    """Local noise within ``torch.vmap(..., randomness="different")`` over draws.

    Args:
        draw: any tensor that the vmap runs over, by which masks know how many draws there are.
    """

    def __init__(self, draw: Tensor) -> None:
        self.draw = draw

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if not _plain_dropout(q):
            return super().push(q, at)
        rate = float(q.drop_rate)
        return at.f(at.x * at.unit_noise(lambda shape: _Masks.apply(self.draw, shape, rate)), q.loc)  # type: ignore[no-untyped-call]

    def whole(self, q: Any) -> Tensor:
        return _Draws.apply(self.draw, q, torch.Size())  # type: ignore[no-any-return, no-untyped-call]

    def bias(self, q: Any, at: LinearMap) -> Tensor:
        return at.over_outputs(at.once("bias", lambda: _Draws.apply(self.draw, q, at.batch)))  # type: ignore[no-untyped-call]


def check_local_form(name: str, q: Any) -> None:
    """Raise a ValueError if the weight `name` with distribution q has no noise form, so that no noise per point exists."""
    if noise_form(q) is None:
        raise ValueError(
            "joint=False samples noise for every point separately, which needs a posterior with a noise_form "
            f"(pyrodrop.distributions.noise_form); got {type(q).__name__} for {name!r}: leave joint at True"
        )


def _plain_dropout(q: Any) -> bool:
    """Whether q drops input units at one rate and does nothing else."""
    if not isinstance(q, BernoulliMixture) or isinstance(q, RelaxedBernoulliMixture):
        return False
    one_rate = not isinstance(q.drop_rate, Tensor) or q.drop_rate.dim() == 0
    return q.columns and q.theta == 0 and one_rate and not never_drops(q.drop_rate)


class _Masks(torch.autograd.Function):
    """A mask for each of the draws that the surrounding vmap runs over."""

    @staticmethod
    def forward(draw: Tensor, shape: torch.Size, rate: float) -> Tensor:
        return keep_mask(shape, rate, device=draw.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, draw: Tensor, shape: torch.Size, rate: float) -> tuple[Tensor, int]:
        return keep_mask((info.batch_size, *shape), rate, device=draw.device), 0


class _Draws(torch.autograd.Function):
    """Weights of any distribution, one for each of the draws that the surrounding vmap runs over: most samplers fill a
    tensor in place, which vmap has no rule for."""

    @staticmethod
    def forward(draw: Tensor, q: Any, batch: torch.Size) -> Tensor:
        return q.expand(batch).sample()  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, draw: Tensor, q: Any, batch: torch.Size) -> tuple[Tensor, int]:
        return q.expand((info.batch_size, *batch)).sample(), 0
