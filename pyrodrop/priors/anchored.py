"""A Gaussian prior around a draw of itself, for ensembles of maximum a posteriori estimates."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import arguments
from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors.prior import Prior, full


class Anchored(Prior):
    """Independent Gaussians whose means, the anchors, are draws from N(0, scale^2).

        a ~ N(0, scale^2)          once for each weight of a model, and anew for each replicate with new starts
        w ~ N(a, scale^2)

    For a network that is linear in its weights, with Gaussian noise of precision tau, the estimate

        w_r = (tau X'X + I / scale^2)^-1 (tau X' y_r + a_r / scale^2),   y_r ~ N(y, 1 / tau)

    is a draw from the posterior N(m, S): E[w_r] = m and Cov[w_r] = S (tau X'X + I / scale^2) S = S. Without the noise of y
    (`data.perturbed`) the covariance is S^2 / scale^2, below S. For other networks it is an approximation.

    The anchors are the initial weights of the model. The model draws them when it is created and in ``reset_parameters()``,
    in place of the initial weights of the network. Training therefore starts at the anchors, saved fits contain them, and
    replicates with ``starts="new"`` each have their own:

        fit_replicates(model, guides.Point(model), data.perturbed(train, 10, noise), count=10, starts="new", ...)

    References:
        Pearce, Leibfried, Brintrup, Zaki & Neely (2020), https://arxiv.org/abs/1810.05546, section 3.

    Args:
        scale: standard deviation of a weight around its anchor, and of the anchors, positive.

    Raises:
        ValueError: `scale` is outside [1e-18, 1e18], the range whose squares float32 can represent.
        TypeError: `scale` is no real number.
    """

    def __init__(self, scale: float = 1.0) -> None:
        value = arguments.scale(scale, "scale", "the standard deviation of a weight around its anchor")
        self._scale = torch.tensor(value, dtype=torch.float64, device="cpu")

    @property
    def scale(self) -> float:
        """Standard deviation of a weight around its anchor, and of the anchors."""
        return float(self._scale)

    def numbers(self) -> dict[str, Tensor]:
        return {"scale": self._scale}

    def initial(self, value: Tensor) -> Tensor:
        return torch.randn_like(value) * self.scale

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        raise ValueError(
            "an anchored prior has a mean for each weight: call for_site(name, like) with the anchors as like"
        )

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        return dist.Normal(like, full(like.shape, self._scale, like)).to_event(like.dim())

    def describe(self) -> str:
        return f"Anchored(scale={self.scale:g})"
