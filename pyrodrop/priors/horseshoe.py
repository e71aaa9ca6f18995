"""The horseshoe: a local and a global scale, each half-Cauchy.

    w_ij ~ N(0, tau^2 lambda_ij^2),   lambda_ij ~ HalfCauchy(1),   tau ~ HalfCauchy(scale)

Sites ``NAME_local_scale`` of the weight's shape and ``NAME_global_scale``. Carvalho, Polson & Scott (2010); for networks
Louizos, Ullrich & Welling (2017), Bayesian Compression. Divergence by Monte Carlo over the scales.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors.gaussian import check_positive
from pyrodrop.priors.prior import Prior


class Horseshoe(Prior):
    """Strong shrinkage of most weights, hardly any of a few.

    Args:
        scale: of the global scale's half-Cauchy, positive.
    """

    def __init__(self, scale: float = 1.0) -> None:
        check_positive("scale", scale, "a horseshoe prior")
        self.scale = scale

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        raise ValueError("a horseshoe has latent scales: draw it in a model, with for_site(name, like)")

    def hyper_sites(self, name: str, like: Tensor, units: InputUnits | None = None) -> dict[str, Tensor]:
        one = torch.ones((1,) * like.dim(), dtype=like.dtype, device=like.device)
        return {
            f"{name}_global_scale": one * like.square().mean().sqrt().clamp_min(1e-2),
            f"{name}_local_scale": torch.ones_like(like),
        }

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        one, n = like.new_ones(()), like.dim()
        overall = pyro.sample(f"{name}_global_scale", dist.HalfCauchy(self.scale * one).expand((1,) * n).to_event(n))
        local = pyro.sample(f"{name}_local_scale", dist.HalfCauchy(one).expand(like.shape).to_event(n))
        return dist.Normal(torch.zeros_like(like), overall * local).to_event(n)

    def describe(self) -> str:
        return f"Horseshoe(scale={self.scale:g})"
