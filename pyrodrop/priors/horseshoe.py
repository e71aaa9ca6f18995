"""The horseshoe prior: Gaussians with a local and a global scale, both half-Cauchy.

    w_ij ~ N(0, tau^2 lambda_ij^2),   lambda_ij ~ HalfCauchy(1),   tau ~ HalfCauchy(scale)

The scales are sampled at the sites ``NAME_local_scale``, of the shape of the weight, and ``NAME_global_scale``. The KL
divergence is a Monte Carlo estimate over the scales. Carvalho, Polson & Scott (2010), The horseshoe estimator for sparse
signals; for networks Louizos, Ullrich & Welling (2017), Bayesian Compression for Deep Learning, arXiv:1705.08665.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import arguments
from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors.prior import Prior


class Horseshoe(Prior):
    """Strong shrinkage of most weights and little shrinkage of a few.

    Args:
        scale: scale of the half-Cauchy distribution of the global scale, positive.

    Raises:
        ValueError: `scale` is outside [1e-18, 1e18].
        TypeError: it is no real number.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = arguments.scale(scale, "scale", "the scale of the global scale of a horseshoe prior")

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        raise ValueError("a horseshoe has latent scales: call for_site(name, like) inside a model, which samples them")

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
