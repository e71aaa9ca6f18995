"""Priors with heavier tails. KL divergences are Monte Carlo estimates, except of mean field from Laplace.

    Laplace        p(w) = exp(-|w| / scale) / (2 scale)
    StudentT       w / scale ~ t(df)
    Horseshoe      w_ij ~ N(0, tau^2 lambda_g^2),   lambda_g ~ HalfCauchy(1),   tau ~ HalfCauchy(scale)

The horseshoe's scales are sampled at the sites ``NAME_local_scale``, one per group, and ``NAME_global_scale``; the Monte
Carlo estimate of its KL divergence samples them, too. The other priors are Pyro's distributions.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import checks
from pyrodrop.checks import one_of, real
from pyrodrop.distributions.pooled_normal import Group
from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors.ard import mean_squares, over_weights
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


class Horseshoe(Prior):
    """Strong shrinkage of most weights, or units, and little shrinkage of a few.

    References:
        Carvalho, Polson & Scott (2010), The horseshoe estimator for sparse signals.
        Louizos, Ullrich & Welling (2017), Bayesian Compression for Deep Learning, https://arxiv.org/abs/1705.08665.

    Args:
        scale: scale of the half-Cauchy distribution of the global scale, positive.
        group: which weights share a local scale, as in `ARD`: each ``weight`` has its own, or one is shared by an ``input``
            unit or an ``output`` unit, which then shrinks as a whole (Louizos, Ullrich & Welling 2017,
            https://arxiv.org/abs/1705.08665, section 4.2), or by the ``layer``.

    Raises:
        ValueError: `scale` is outside [1e-18, 1e18], or `group` is unknown. When the prior is used: the group is ``input``
            or ``output``, and the input units of a tensor with several axes are unknown.
        TypeError: `scale` is no real number.
    """

    def __init__(self, scale: float = 1.0, group: Group = "weight") -> None:
        self.scale: float = checks.scale(scale, "scale", "the scale of the global scale of a horseshoe prior")
        self.group: Group = one_of(group, Group, "group")

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        raise ValueError("a horseshoe has latent scales: call for_site(name, like) inside a model, which samples them")

    def hyper_sites(self, name: str, like: Tensor, units: InputUnits | None = None) -> dict[str, Tensor]:
        return {
            f"{name}_global_scale": like.square().mean().sqrt().clamp_min(1e-2).reshape((1,) * like.dim()),
            f"{name}_local_scale": torch.ones_like(mean_squares(self.group, name, like, units)),
        }

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        unit, n, site = like.new_ones(()), like.dim(), mean_squares(self.group, name, like, units).shape
        overall = pyro.sample(f"{name}_global_scale", dist.HalfCauchy(self.scale * unit).expand((1,) * n).to_event(n))
        local = pyro.sample(f"{name}_local_scale", dist.HalfCauchy(unit).expand(site).to_event(len(site)))
        local = over_weights(local, self.group, name, like, units)
        return dist.Normal(torch.zeros_like(like), overall * local).to_event(n)

    def describe(self) -> str:
        return f"Horseshoe(scale={self.scale:g}" + (")" if self.group == "weight" else f", group={self.group})")
