"""The noise form of a weight distribution: the weight as a linear function of independent noise.

    W = M diag(s) + sqrt(V) * E + sum_r e_r F_r        M, V, F_r [out, in, ...], s [in], E_ij and e_r ~ N(0, 1)

A distribution defines its form once (`WeightDistribution.noise_form`). Everything that propagates noise through a linear map
without sampling W is derived from it, in `pyrodrop.reparam`: the estimator ``local``, and predictions. A distribution that
has none is sampled as a whole weight; ``local`` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal


@dataclass(frozen=True)
class NoiseForm:
    """The terms of the equation above. Each is a function, so that asking which terms exist computes nothing.

    Attributes:
        loc: M, of the weight's shape.
        scales: samples of s with a given shape ``[..., in]`` and dtype; None if s = 1.
        variance: V, which broadcasts to the weight's shape; None if the term is absent.
        factors: the F_r, each of the weight's shape; None if the term is absent.
    """

    loc: Callable[[], Tensor]
    scales: Callable[[torch.Size, torch.dtype], Tensor] | None = None
    variance: Callable[[], Tensor] | None = None
    factors: Callable[[], Iterable[Tensor]] | None = None

    @property
    def constant(self) -> bool:
        """Whether there is no noise: W = M."""
        return self.scales is None and self.variance is None and self.factors is None

    @property
    def only_scales(self) -> bool:
        """Whether W = M diag(s)."""
        return self.scales is not None and self.variance is None and self.factors is None


def noise_form(q: Any) -> NoiseForm | None:
    """The noise form of a weight's distribution, which is a `WeightDistribution` or one of independent normal numbers.

    Returns:
        The form, or None for a distribution without one.
    """
    if isinstance(q, Independent) and isinstance(q.base_dist, Normal):
        base = q.base_dist
        return NoiseForm(lambda: base.loc, variance=lambda: base.scale**2)
    return getattr(q, "noise_form", None)


def is_constant(q: Distribution) -> bool:
    """Whether q puts all of its probability on one weight, its ``loc``: dropout at rate 0 and theta = 0."""
    form = noise_form(q)
    return form is not None and form.constant
