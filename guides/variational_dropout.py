"""Variational dropout: Gaussian dropout with a learned noise variance."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights, one_of, real, variance
from pyrodrop.guides.gaussian_dropout import CORRELATED, Kind, alpha_of_rate, gaussian
from pyrodrop.guides.guide import Guide, check_units
from pyrodrop.modules import ParameterTree

Granularity: TypeAlias = Literal["layer", "input", "weight"]


class VariationalDropout(Guide):
    """Multiplicative Gaussian noise with a learned variance alpha.

        A  W = M diag(s),   s_k ~ N(1, alpha_k)
        B  w_ij = m_ij (1 + sqrt(alpha) e_ij)

        alpha = max_alpha sigmoid(a)                          one per layer, per input unit or per weight

    The paper limits alpha to 1, because the objective has poor local optima above. Its type A2 is type A with the KL
    divergence scaled by 1/3. The KL divergence from the log-uniform prior is known up to the constant of that improper
    prior, with an error below 1e-10 nats per term in float64; it has one term per input unit for type A and one per weight
    for type B.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.3.

    Args:
        model: the model whose weights are inferred.
        kind: ``A`` for noise that is shared per input unit, ``B`` for independent noise per weight.
        rates: whether to learn one alpha per ``layer``, per ``input`` unit or per ``weight`` (type B only).
        max_alpha: upper bound of alpha, positive; infinity for no bound.
        kl_scale: factor of the KL divergence in training; 1/3 with type A gives type A2. With a factor other than 1 the
            training objective is not a bound on the evidence: `Fit.elbo` uses the unscaled KL divergence.
        drop_rate: determines the initial alpha = drop_rate / (1 - drop_rate), which must be below `max_alpha`.

    Raises:
        ValueError: an argument is out of range, type A is combined with ``rates="weight"``, or noise per input unit is used
            for a tensor with several axes whose input units are unknown.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.

    Example:
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.ARD("weight"), likelihood=likelihoods.Gaussian())
        >>> guide = guides.VariationalDropout(model, kind="B", rates="input", drop_rate=0.2)
        >>> guide.rates()["layers.0.weight"]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self,
        model: HasWeights,
        kind: Kind = "B",
        rates: Granularity = "layer",
        *,
        max_alpha: float = 1.0,
        kl_scale: float = 1.0,
        drop_rate: float = 0.1,
    ) -> None:
        super().__init__(model)
        self.kind: Kind = one_of(kind, Kind, "kind")
        self.granularity: Granularity = one_of(rates, Granularity, "rates")
        if self.kind == "A" and rates == "weight":
            raise ValueError(
                "type A has one noise value per input unit, so rates must be 'layer' or 'input'; got 'weight'"
            )
        if not (isinstance(max_alpha, float) and max_alpha == math.inf):
            max_alpha = variance(max_alpha, "max_alpha", "the bound of the variance alpha of the noise (or math.inf)")
        kl_scale = real(kl_scale, "kl_scale", "a factor of the KL divergence", above=0)
        if self.kind == "A":
            check_units(self.sites, model, "variational dropout of type A", CORRELATED)
        elif rates == "input":
            check_units(self.sites, model, "a rate per input unit", "use rates='layer' or rates='weight'")
        start = alpha_of_rate(drop_rate, "the start")
        if not 0 < start < max_alpha:
            raise ValueError(
                "drop_rate must give an initial alpha = rate / (1 - rate) strictly between 0 and max_alpha "
                f"{max_alpha:g}; got {start:g}"
            )
        self.max_alpha: float = max_alpha
        self.kl_scale: float = kl_scale
        initial = model.weight_sites()
        raw = math.log(start) if math.isinf(max_alpha) else math.log(start / (max_alpha - start))
        self.loc: ParameterTree = ParameterTree(initial)
        self.raw_alpha: ParameterTree = ParameterTree(
            {n: torch.full(self._shape(n, w), raw).to(w) for n, w in initial.items()}
        )

    def _shape(self, name: str, weight: Tensor) -> tuple[int, ...]:
        if self.granularity == "input":
            return (self.units[name].count(weight.shape),)
        return () if self.granularity == "layer" else tuple(weight.shape)

    def log_alpha(self, name: str) -> Tensor:
        """ln alpha of the weight `name`: a scalar tensor, ``[in]`` or the shape of the weight."""
        raw = self.raw_alpha[name]
        if math.isinf(self.max_alpha):
            return raw
        return math.log(self.max_alpha) + torch.nn.functional.logsigmoid(raw)

    def posterior(self, name: str) -> TorchDistribution:
        loc, log_alpha = self.loc[name], self.log_alpha(name)
        if self.kind == "B" and self.granularity == "input" and loc.dim() > 1:
            log_alpha = self.units[name].over(log_alpha, loc.shape)
        return gaussian(self.kind, loc, log_alpha, self.units[name])

    def _draw_weight(self, name: str) -> Tensor:
        with pyro.poutine.scale(scale=self.kl_scale):
            return super()._draw_weight(name)

    def learned_rates(self) -> dict[str, Tensor]:
        """alpha of every weight, by weight name: a scalar tensor, ``[in]`` or the shape of the weight."""
        return {name: self.log_alpha(name).exp() for name in self.sites}

    def describe(self) -> str:
        limits = f"max_alpha={self.max_alpha:g}, kl_scale={self.kl_scale:g}"
        return f"VariationalDropout({self.kind}, per {self.granularity}, {limits})"
