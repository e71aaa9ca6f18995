"""Gaussian dropout with a fixed rate.

    A  W = M diag(s),   s_k ~ N(1, alpha)                 one scale an input unit: weights of a unit move together
    B  w_ij = m_ij (1 + sqrt(alpha) e_ij)                 independent

    alpha = drop_rate / (1 - drop_rate)                   the variance of Bernoulli dropout's noise

Wang & Manning (2013); Srivastava et al. (2014), section 10; Kingma, Salimans & Welling (2015), section 3.1-3.2. Under the
log-uniform prior the divergence depends on alpha alone, so with alpha fixed it is a constant and training is that of
Gaussian dropout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import torch
from pyro.distributions import TorchDistribution

from pyrodrop.distributions import CorrelatedNormal, InputUnits, MultiplicativeNormal
from pyrodrop.distributions.bernoulli_mixture import check_drop_rate
from pyrodrop.guides.guide import ALPHA, Guide, HasWeights, check_units
from pyrodrop.modules import ParameterTree
from pyrodrop.names import by_name, known

Kind = Literal["A", "B"]


class GaussianDropout(Guide):
    """Multiplicative Gaussian noise of fixed size.

    Args:
        model: the model whose weights to infer.
        kind: ``A``, correlated, or ``B``, independent.
        alpha: variance of the noise, positive: one for all, or by weight name.
        drop_rate: the other way to say it, in (0, 1): alpha = drop_rate / (1 - drop_rate). Give one of the two.

    Raises:
        ValueError: neither or both given, or out of range; type A on a matrix that is no layer's weight, which has no units.

    Example:
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.GaussianDropout(model, kind="B", drop_rate=0.2)
        >>> guide.rates()
        {'layers.0.weight': 0.25, 'layers.1.weight': 0.25}
    """

    rate_kind = dataclasses.replace(ALPHA, learned=False)

    def __init__(
        self,
        model: HasWeights,
        kind: Kind = "B",
        alpha: float | Mapping[str, float] | None = None,
        *,
        drop_rate: float | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(model)
        self.kind = known(kind, ("A", "B"), "type of Gaussian dropout")
        if self.kind == "A":
            check_units(self.sites, model, "Gaussian dropout of type A", CORRELATED)
        if (alpha is None) == (drop_rate is None):
            raise ValueError(f"Gaussian dropout takes alpha or drop_rate, one of them; got {alpha} and {drop_rate}")
        if drop_rate is not None:
            rates = by_name(drop_rate, self.sites, "drop_rate")
            alphas = {name: alpha_of_rate(rate, name) for name, rate in rates.items()}
        else:
            assert alpha is not None
            alphas = by_name(alpha, self.sites, "alpha")
        for name, value in alphas.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"alpha is the variance of multiplicative noise and must be positive; got {value} for {name!r}"
                )
        logs = [math.log(alphas[name]) for name in self.sites]
        self.register_buffer("log_alpha", torch.tensor(logs, dtype=torch.float64))
        self.loc = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        log_alpha: torch.Tensor = self.log_alpha  # type: ignore[assignment]
        return gaussian(self.kind, self.loc[name], log_alpha[self.sites.index(name)], self.units[name])

    def rates(self) -> dict[str, float]:
        """alpha of every weight site."""
        log_alpha: torch.Tensor = self.log_alpha  # type: ignore[assignment]
        return dict(zip(self.sites, log_alpha.exp().tolist(), strict=True))

    def describe(self) -> str:
        return f"GaussianDropout({self.kind}, alpha={'/'.join(f'{a:.3g}' for a in self.rates().values())})"


CORRELATED = "use kind='B', whose noise is by weight, or no prior for it: prior={NAME: None, '*': ...}"


def gaussian(kind: str, loc: torch.Tensor, log_alpha: torch.Tensor, units: InputUnits) -> TorchDistribution:
    """The distribution of type A or B."""
    log_alpha = log_alpha.to(loc)
    return CorrelatedNormal(loc, log_alpha, units=units) if kind == "A" else MultiplicativeNormal(loc, log_alpha)


def alpha_of_rate(rate: float, name: str) -> float:
    """alpha = rate / (1 - rate); a ValueError for a rate outside (0, 1)."""
    check_drop_rate(rate, name)
    return rate / (1 - rate)
