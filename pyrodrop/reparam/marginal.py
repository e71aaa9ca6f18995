"""Local noise for prediction: the marginal distribution of each point, with a fast sampler for dropout masks.

Prediction with ``joint=False`` needs noise per example, input unit *and sample*. For Bernoulli dropout at theta = 0 sampling
the masks would take most of the time, so they come from `pyrodrop.distributions.keep_mask`. All other noise is that of
`LocalReparam`. The marginal distribution of a point equals that of a weight sample: for noise per input unit always, and for
noise per weight in layers whose examples are single rows (see `pyrodrop.reparam.local`). Other weights are drawn as a whole,
one for all points of a sample: under noise per weight those that several rows of an example share, and those whose local
form has only their mean and variance (DropConnect).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import instance
from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.bernoulli_mixture import never_drops
from pyrodrop.distributions.coins import keep_mask
from pyrodrop.distributions.noise_form import noise_form
from pyrodrop.reparam.local import LocalReparam, draws_by_row
from pyrodrop.reparam.maps import LinearMap


class MarginalReparam(LocalReparam):
    """Local noise within ``torch.vmap(..., randomness="different")`` over samples.

    Args:
        draw: any tensor that the vmap maps over; its batch size is the number of samples.

    Raises:
        TypeError: `draw` is no tensor.
    """

    def __init__(self, draw: Tensor) -> None:
        self.draw: Tensor = instance(draw, Tensor, "draw", "a tensor that the vmap over samples maps over")

    def whole_for_rows(self, q: Any) -> bool:
        return draws_by_row(q)

    def pushes(self, q: Any, at: LinearMap) -> bool:
        form = noise_form(q)
        return (form is None or not form.moments) and super().pushes(q, at)

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if not _plain_dropout(q):
            return super().push(q, at)
        rate = float(q.drop_rate)
        mask = at.unit_noise(lambda shape: self._sample(lambda samples: _mask(samples + shape, rate, self.draw.device)))
        return at.f(at.x * mask, q.loc)

    def whole(self, q: Any) -> Tensor:
        return self._sample(lambda samples: q.expand(samples + q.batch_shape).sample())

    def _sample(self, sampler: Callable[[torch.Size], Tensor]) -> Tensor:
        """Call `sampler` with a leading shape: ``[]``, or within a vmap its number of samples."""
        return _PerSample.apply(self.draw, sampler)  # type: ignore[no-any-return, no-untyped-call]


def check_local_form(name: str, q: Any) -> None:
    """Raise a ValueError if q, the distribution of the weight `name`, has no noise form and thus no noise per point."""
    if noise_form(q) is None:
        raise ValueError(
            "joint=False samples noise for every point separately, which needs a posterior with a noise_form "
            f"(pyrodrop.distributions.noise_form); got {type(q).__name__} for {name!r}: leave joint at True"
        )


def _plain_dropout(q: Any) -> bool:
    """Whether q only drops input units, all at the same rate."""
    if not isinstance(q, BernoulliMixture) or isinstance(q, RelaxedBernoulliMixture):
        return False
    one_rate = not isinstance(q.drop_rate, Tensor) or q.drop_rate.dim() == 0
    return q.columns and q.theta == 0 and one_rate and not never_drops(q.drop_rate)


def _mask(shape: torch.Size, rate: float, device: torch.device) -> Tensor:
    return keep_mask(shape, rate, device=device).view(torch.uint8)  # multiplied faster than bool


class _PerSample(torch.autograd.Function):
    """Draws the noise of all samples of the surrounding vmap in one call.

    Most samplers fill a tensor in place, for which vmap has no rule.
    """

    @staticmethod
    def forward(draw: Tensor, sampler: Callable[[torch.Size], Tensor]) -> Tensor:
        return sampler(torch.Size())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, draw: Tensor, sampler: Callable[[torch.Size], Tensor]) -> tuple[Tensor, int]:
        return sampler(torch.Size([info.batch_size])), 0
