"""Priors with heavier tails. KL divergences are Monte Carlo estimates, except of mean field from Laplace.

    Laplace        p(w) = exp(-|w| / scale) / (2 scale)
    StudentT       w / scale ~ t(df)

The distributions are Pyro's. `priors.ARD` with a hyperprior such as ``dist.HalfCauchy(1.0)`` has heavy tails with a scale
for each group of weights.
"""

from __future__ import annotations

import pyro.distributions as dist
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import checks
from pyrodrop.checks import real
from pyrodrop.priors.prior import Prior, full

MOST_DF = 1000  # above, float32 rounds the constant of the density by more than 2e-4 nats per weight


class Laplace(Prior):
    """Laplace (double exponential) distribution with mean 0.

    References:
        Fortuin et al. (2022), Bayesian Neural Network Priors Revisited, https://arxiv.org/abs/2102.06571.

    Args:
        scale: mean absolute value of a weight, positive.

    Raises:
        ValueError: `scale` is outside [1e-18, 1e18].
        TypeError: it is no real number.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale: float = checks.scale(scale, "scale", "the mean absolute value of a weight under a Laplace prior")

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return dist.Laplace(full(shape, 0.0, like), full(shape, self.scale, like)).to_event(len(shape))

    def describe(self) -> str:
        return f"Laplace(scale={self.scale:g})"


class StudentT(Prior):
    """Student's t distribution centred at 0.

    References:
        Fortuin et al. (2022), Bayesian Neural Network Priors Revisited, https://arxiv.org/abs/2102.06571.

    Args:
        df: degrees of freedom, from 1e-3 to 1000. For larger values, use a `Gaussian`.
        scale: scale of the distribution, positive.

    Raises:
        ValueError: an argument is out of range: `df` in [1e-3, 1000], `scale` in [1e-18, 1e18].
        TypeError: it is no real number.
    """

    def __init__(self, df: float = 3.0, scale: float = 1.0) -> None:
        self.df: float = real(df, "df", "the degrees of freedom of a Student t prior", least=1e-3, most=MOST_DF)
        self.scale: float = checks.scale(scale, "scale", "the scale of a Student t prior")

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        df, loc, scale = (full(shape, v, like) for v in (self.df, 0.0, self.scale))
        return dist.StudentT(df, loc, scale).to_event(len(shape))

    def describe(self) -> str:
        return f"StudentT(df={self.df:g}, scale={self.scale:g})"
