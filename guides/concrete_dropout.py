"""Concrete dropout: Bernoulli dropout whose rates are learned through a relaxed mask.

    W = V diag(z / (1 - r)),   z_k = 1 - sigmoid((logit(r) + logit(u_k)) / temperature),   u_k ~ U(0, 1)

V = loc is the mean of W here, as the weight behind a dropout layer that divides by 1 - r is: a rate can then be learned
without the function's mean moving with it.
Gal, Hron & Kendall (2017). The divergence is that of the mask without relaxation, with -H(r) per input unit, which
pulls the rate towards one half; without it the rate would go to zero. Up to the constant of theta -> 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.bernoulli_mixture import check_drop_rate
from pyrodrop.guides.guide import Guide, HasWeights
from pyrodrop.modules import ParameterTree
from pyrodrop.names import known


class ConcreteDropout(Guide):
    """Bernoulli dropout with learned rates. Vectors such as biases are never dropped.

    Args:
        model: the model whose weights to infer.
        rates: whether a rate belongs to a ``layer`` or an ``input`` unit.
        drop_rate: where training starts, in (0, 1).
        temperature: of the relaxation, positive; 0.1 in the paper.
        mask_input: whether the network's own input is dropped too.
    """

    def __init__(
        self,
        model: HasWeights,
        rates: Literal["layer", "input"] = "layer",
        *,
        drop_rate: float = 0.1,
        temperature: float = 0.1,
        mask_input: bool = True,
    ) -> None:
        super().__init__(model)
        check_drop_rate(drop_rate)
        if drop_rate == 0:
            raise ValueError("drop_rate is where a learned rate starts and must lie in (0, 1); got 0")
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"temperature of the relaxed mask must be positive and finite; got {temperature}")
        self.granularity = known(rates, ("layer", "input"), "granularity of rates")
        self.temperature = temperature
        initial = model.weight_sites()
        masked = [n for n, w in initial.items() if w.dim() > 1][0 if mask_input else 1 :]
        start = math.log(drop_rate / (1 - drop_rate))
        shapes = {n: (initial[n].shape[1],) if rates == "input" else () for n in masked}
        self.loc = ParameterTree(initial)
        self.logit = ParameterTree({n: torch.full(shape, start).to(initial[n]) for n, shape in shapes.items()})

    def posterior(self, name: str) -> TorchDistribution:
        if name not in self.logit:
            return BernoulliMixture(self.loc[name], 0.0)
        loc, logit = self.loc[name], self.logit[name]
        keep = torch.sigmoid(-logit)
        if keep.dim():  # by input unit
            keep = keep.reshape(1, -1, *(1,) * (loc.dim() - 2))
        return RelaxedBernoulliMixture(loc / keep, logit, self.temperature)

    def rates(self) -> dict[str, Tensor]:
        """The drop rate of every masked weight site: a number or ``[in]``."""
        return {name: torch.sigmoid(self.logit[name]).detach() for name in self.logit}

    def describe(self) -> str:
        return f"ConcreteDropout(per {self.granularity}, temperature={self.temperature:g})"
