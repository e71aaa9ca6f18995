"""Concrete dropout: Bernoulli dropout with rates that are learned by means of a relaxed mask."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights, one_of, scale
from pyrodrop.distributions import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.guides.guide import DROP_RATE, Guide, check_units, drop_rates, undropped_inputs
from pyrodrop.modules import ParameterTree

Granularity: TypeAlias = Literal["layer", "input"]


class ConcreteDropout(Guide):
    """Bernoulli dropout with learned rates. Vectors such as biases are never dropped.

        W = V diag(z / (1 - r)),   z_k = 1 - sigmoid((logit(r) + logit(u_k)) / temperature),   u_k ~ U(0, 1)

    Here V = loc is the mean of W, like the weight of a layer after `torch.nn.Dropout`, which divides by 1 - r. Changing a
    rate therefore does not change the mean of W.

    The KL divergence is that of the mask without relaxation. It contains the term -H(r) per input unit, which pulls the
    rate towards one half; without this term the rate would go to zero. It is known up to the constant of the limit theta ->
    0, which depends only on the number of weights.

    References:
        Gal, Hron & Kendall (2017), Concrete Dropout, https://arxiv.org/abs/1705.07832.

    Args:
        model: the model whose weights are inferred.
        rates: whether to learn one rate per ``layer`` or per ``input`` unit.
        drop_rate: initial rate, in (0, 1): one for all weights, or a mapping from name patterns to rates. Weights with
            rate 0 are never dropped.
        temperature: temperature of the relaxation, positive; 0.1 in the paper.
        mask_input: whether to drop inputs of the network itself too, that is, inputs of the weights that act on x. If None,
            they are if there are at least 20, if `drop_rate` names weights, or if the first layer cannot be identified.

    Raises:
        ValueError: a rate or the temperature is out of range, or a rate other than 0 is given for a tensor with several axes
            whose input units are unknown.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.
    """

    rate_kind = dataclasses.replace(DROP_RATE, learned=True)

    def __init__(
        self,
        model: HasWeights,
        rates: Granularity = "layer",
        *,
        drop_rate: float | Mapping[str, float] = 0.1,
        temperature: float = 0.1,
        mask_input: bool | None = None,
    ) -> None:
        super().__init__(model)
        initial = model.weight_sites()
        starts = drop_rates(drop_rate, [n for n, w in initial.items() if w.dim() > 1])
        if not any(starts.values()):
            raise ValueError("drop_rate is the initial value of a learned rate and must lie in (0, 1); got 0")
        self.temperature: float = scale(temperature, "temperature", "the temperature of the relaxed mask")
        self.granularity: str = one_of(rates, Granularity, "rates")
        starts |= undropped_inputs(model, drop_rate, mask_input)
        masked = {name: math.log(rate / (1 - rate)) for name, rate in starts.items() if rate > 0}
        never = "never drop it: drop_rate={NAME: 0.0, '*': ...}"
        check_units(masked, model, "dropping input units", never)
        shapes = {n: (self.units[n].count(initial[n].shape),) if rates == "input" else () for n in masked}
        self.loc: ParameterTree = ParameterTree(initial)
        self.logit: ParameterTree = ParameterTree(
            {n: torch.full(shapes[n], s).to(initial[n]) for n, s in masked.items()}
        )

    def posterior(self, name: str) -> TorchDistribution:
        if name not in self.logit:
            return BernoulliMixture(self.loc[name], 0.0, units=self.units[name])
        loc, logit = self.loc[name], self.logit[name]
        keep = torch.sigmoid(-logit)
        if keep.dim():  # one rate per input unit
            keep = self.units[name].over(keep, loc.shape)
        return RelaxedBernoulliMixture(loc / keep, logit, self.temperature, units=self.units[name])

    def learned_rates(self) -> dict[str, Tensor]:
        """The drop rate of every weight that is dropped, by weight name: a scalar tensor or ``[in]``."""
        return {name: torch.sigmoid(self.logit[name]) for name in self.logit}

    def describe(self) -> str:
        return f"ConcreteDropout(per {self.granularity}, temperature={self.temperature:g})"
