"""Gaussian dropout with a fixed rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pyro.distributions import TorchDistribution

from pyrodrop.checks import HasWeights, by_name, one_of, real, variance
from pyrodrop.distributions import CorrelatedNormal, InputUnits, MultiplicativeNormal
from pyrodrop.distributions.coins import check_drop_rate
from pyrodrop.guides.guide import ALPHA, Guide, check_units
from pyrodrop.modules import ParameterTree

Kind = Literal["A", "B"]


class GaussianDropout(Guide):
    """Multiplicative Gaussian noise of fixed variance.

        A  W = M diag(s),   s_k ~ N(1, alpha)                 one scale per input unit: the weights of a unit are correlated
        B  w_ij = m_ij (1 + sqrt(alpha) e_ij)                 independent weights

        alpha = drop_rate / (1 - drop_rate)                   the variance of the noise of Bernoulli dropout

    Under the log-uniform prior the KL divergence depends only on alpha. With alpha fixed it is therefore a constant, and
    training the ELBO is the same as training with Gaussian dropout.

    References:
        Wang & Manning (2013), Fast dropout training, https://proceedings.mlr.press/v28/wang13a.html.
        Srivastava et al. (2014), Dropout, https://jmlr.org/papers/v15/srivastava14a.html, section 10.
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, sections 3.1 and 3.2.

    Args:
        model: the model whose weights are inferred.
        kind: ``A`` for noise that is shared per input unit, ``B`` for independent noise per weight.
        alpha: variance of the noise, positive: one value for all weights, or a mapping from name patterns to values.
        drop_rate: alternative to `alpha`, in (0, 1): alpha = drop_rate / (1 - drop_rate). Exactly one of the two is needed.

    Raises:
        ValueError: neither or both of `alpha` and `drop_rate` are given, a value is out of range, or type A is used for a
            tensor with several axes whose input units are unknown.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.

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
        self.kind: Kind = one_of(kind, Kind, "kind")
        if self.kind == "A":
            check_units(self.sites, model, "Gaussian dropout of type A", CORRELATED)
        if (alpha is None) == (drop_rate is None):
            raise ValueError(
                f"Gaussian dropout takes alpha or drop_rate, one of them; got alpha={alpha} and drop_rate={drop_rate}"
            )
        setting: Any = (
            by_name(drop_rate, self.sites, "drop_rate") if alpha is None else by_name(alpha, self.sites, "alpha")
        )
        alphas = {name: alpha_of_rate(rate, name) for name, rate in setting.items()} if alpha is None else setting
        what = "the variance of multiplicative noise, rate / (1 - rate) of a drop rate,"
        logs = [math.log(variance(alphas[name], "alpha", f"{what} of {name!r}")) for name in self.sites]
        self.register_buffer("log_alpha", torch.tensor(logs, dtype=torch.float64))
        self.loc: ParameterTree = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        log_alpha: torch.Tensor = self.log_alpha  # type: ignore[assignment]
        return gaussian(self.kind, self.loc[name], log_alpha[self.sites.index(name)], self.units[name])

    def rates(self) -> dict[str, float]:
        """alpha of every weight, by weight name."""
        log_alpha: torch.Tensor = self.log_alpha  # type: ignore[assignment]
        return dict(zip(self.sites, log_alpha.exp().tolist(), strict=True))

    def describe(self) -> str:
        return f"GaussianDropout({self.kind}, alpha={'/'.join(f'{a:.3g}' for a in self.rates().values())})"


CORRELATED = "use kind='B', with independent noise per weight, or no prior for it: prior={NAME: None, '*': ...}"


def gaussian(kind: str, loc: torch.Tensor, log_alpha: torch.Tensor, units: InputUnits) -> TorchDistribution:
    """The distribution over one weight of type A or B."""
    log_alpha = log_alpha.to(loc)
    return CorrelatedNormal(loc, log_alpha, units=units) if kind == "A" else MultiplicativeNormal(loc, log_alpha)


def alpha_of_rate(rate: float, name: str) -> float:
    """alpha = rate / (1 - rate); raise a ValueError for a rate outside [0, 1). `name` is used in the message."""
    check_drop_rate(rate, name)
    rate = real(rate, "drop_rate", f"the rate of {name!r}", least=0, below=1)
    return rate / (1 - rate)
