"""Concrete dropout: Bernoulli dropout whose rates are learned through a relaxed mask.

    W = V diag(z / (1 - r)),   z_k = 1 - sigmoid((logit(r) + logit(u_k)) / temperature),   u_k ~ U(0, 1)

V = loc is the mean of W here, as the weight behind a dropout layer that divides by 1 - r is: a rate can then be learned
without the function's mean moving with it.
Gal, Hron & Kendall (2017). The divergence is that of the mask without relaxation, with -H(r) per input unit, which
pulls the rate towards one half; without it the rate would go to zero. Up to the constant of theta -> 0, which depends on
the number of weights alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.bernoulli_mixture import check_drop_rate
from pyrodrop.guides.guide import DROP_RATE, Guide, HasWeights, check_units, first_weights
from pyrodrop.modules import ParameterTree
from pyrodrop.names import by_name, known


class ConcreteDropout(Guide):
    """Bernoulli dropout with learned rates. Vectors such as biases are never dropped.

    Args:
        model: the model whose weights to infer.
        rates: whether a rate belongs to a ``layer`` or an ``input`` unit.
        drop_rate: where training starts, in (0, 1): one for all, or by weight name, where 0 is for what is never dropped.
        temperature: of the relaxation, positive; 0.1 in the paper.
        mask_input: whether the network's own input, that of the weights that see x itself, is dropped too.

    Raises:
        ValueError: a rate or temperature out of range, or a rate for a matrix that is no layer's weight.
    """

    rate_kind = dataclasses.replace(DROP_RATE, learned=True)

    def __init__(
        self,
        model: HasWeights,
        rates: Literal["layer", "input"] = "layer",
        *,
        drop_rate: float | Mapping[str, float] = 0.1,
        temperature: float = 0.1,
        mask_input: bool = True,
    ) -> None:
        super().__init__(model)
        initial = model.weight_sites()
        starts: dict[str, float] = by_name(drop_rate, [n for n, w in initial.items() if w.dim() > 1], "drop_rate")
        for name, rate in starts.items():
            check_drop_rate(rate, name)
        if not any(starts.values()):
            raise ValueError("drop_rate is where a learned rate starts and must lie in (0, 1); got 0")
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"temperature of the relaxed mask must be positive and finite; got {temperature}")
        self.granularity = known(rates, ("layer", "input"), "granularity of rates")
        self.temperature = temperature
        if not mask_input:
            starts |= dict.fromkeys(first_weights(model), 0.0)
        masked = {name: math.log(rate / (1 - rate)) for name, rate in starts.items() if rate > 0}
        never = "never drop it: drop_rate={NAME: 0.0, '*': ...}"
        check_units(masked, model, "dropping input units", never)
        shapes = {n: (self.units[n].count(initial[n].shape),) if rates == "input" else () for n in masked}
        self.loc = ParameterTree(initial)
        self.logit = ParameterTree({n: torch.full(shapes[n], s).to(initial[n]) for n, s in masked.items()})

    def posterior(self, name: str) -> TorchDistribution:
        if name not in self.logit:
            return BernoulliMixture(self.loc[name], 0.0, units=self.units[name])
        loc, logit = self.loc[name], self.logit[name]
        keep = torch.sigmoid(-logit)
        if keep.dim():  # by input unit
            keep = self.units[name].over(keep, loc.shape)
        return RelaxedBernoulliMixture(loc / keep, logit, self.temperature, units=self.units[name])

    def rates(self) -> dict[str, Tensor]:
        """The drop rate of every masked weight site: a number or ``[in]``."""
        return {name: torch.sigmoid(self.logit[name]).detach() for name in self.logit}

    def describe(self) -> str:
        return f"ConcreteDropout(per {self.granularity}, temperature={self.temperature:g})"
