"""Priors with heavier tails or a spike, from Pyro's distributions. KL divergences from them are Monte Carlo estimates.

    Laplace        p(w) = exp(-|w| / scale) / (2 scale)
    StudentT       w / scale ~ t(df)
    ScaleMixture   p(w) = mix N(w; 0, wide^2) + (1 - mix) N(w; 0, narrow^2)
    SpikeAndSlab   the same, with a much narrower second component

For the mixture see Blundell et al. (2015), Weight Uncertainty in Neural Networks, arXiv:1505.05424, eq. 7; for heavy tails
Fortuin et al. (2022), Bayesian Neural Network Priors Revisited, arXiv:2102.06571.
"""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.priors.gaussian import check_positive
from pyrodrop.priors.prior import Prior, full


class Laplace(Prior):
    """Laplace (double exponential) distribution with mean 0.

    Args:
        scale: mean absolute value of a weight, positive.

    Raises:
        ValueError: `scale` is not positive and finite.
    """

    def __init__(self, scale: float = 1.0) -> None:
        check_positive("scale", scale, "a Laplace prior")
        self.scale = scale

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return dist.Laplace(full(shape, 0.0, like), full(shape, self.scale, like)).to_event(len(shape))

    def describe(self) -> str:
        return f"Laplace(scale={self.scale:g})"


class StudentT(Prior):
    """Student's t distribution with mean 0.

    Args:
        df: degrees of freedom, positive.
        scale: scale of the distribution, positive.

    Raises:
        ValueError: an argument is not positive and finite.
    """

    def __init__(self, df: float = 3.0, scale: float = 1.0) -> None:
        check_positive("df", df, "a Student t prior")
        check_positive("scale", scale, "a Student t prior")
        self.df, self.scale = df, scale

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        df, loc, scale = (full(shape, v, like) for v in (self.df, 0.0, self.scale))
        return dist.StudentT(df, loc, scale).to_event(len(shape))

    def describe(self) -> str:
        return f"StudentT(df={self.df:g}, scale={self.scale:g})"


class _OverAllNumbers(dist.MixtureSameFamily):  # type: ignore[misc]
    """A mixture with the real line as its support, so that automatic guides and HMC know how to transform it."""

    support = constraints.real


class ScaleMixture(Prior):
    """Mixture of a wide and a narrow zero-mean Gaussian.

    Args:
        wide, narrow: standard deviations of the components, positive.
        mix: probability of the wide component, in (0, 1).

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, wide: float = 1.0, narrow: float = 0.1, mix: float = 0.5) -> None:
        check_positive("wide", wide, "a scale mixture prior")
        check_positive("narrow", narrow, "a scale mixture prior")
        if not 0 < mix < 1:
            raise ValueError(f"mix is the probability of the wide component and must lie in (0, 1); got {mix}")
        self.wide, self.narrow, self.mix = wide, narrow, mix

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        scales = torch.stack([full(shape, self.wide, like), full(shape, self.narrow, like)], -1)
        probs = torch.stack([full(shape, self.mix, like), full(shape, 1 - self.mix, like)], -1)
        components = dist.Normal(torch.zeros_like(scales), scales)
        return _OverAllNumbers(dist.Categorical(probs), components).to_event(len(shape))

    def describe(self) -> str:
        return f"{type(self).__name__}(wide={self.wide:g}, narrow={self.narrow:g}, mix={self.mix:g})"


class SpikeAndSlab(ScaleMixture):
    """Mixture of a Gaussian slab and a Gaussian spike that is narrow enough to make its weights nearly zero.

    Args:
        slab, spike: standard deviations of the components, positive.
        mix: probability of the slab, in (0, 1).

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, slab: float = 1.0, spike: float = 0.01, mix: float = 0.5) -> None:
        super().__init__(slab, spike, mix)
