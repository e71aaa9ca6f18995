"""Gaussian prior.

    w ~ N(0, scale^2),   scale = 1 / length_scale

The length scale l is that of Gal & Ghahramani (2016), Appendix (arXiv:1506.02157), section 4: w ~ N(0, l^-2). With drop
rate 1 - p, N data points and observation precision tau, dropout in the limit theta -> 0 minimises
(1/N) sum_n E_n + weight_decay ||M||^2, where E_n = |y_n - f_n|^2 / 2 and

    weight_decay = p l^2 / (2 N tau)
"""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import arguments
from pyrodrop.arguments import count, positive
from pyrodrop.distributions.coins import check_drop_rate
from pyrodrop.priors.prior import Prior, full


class Gaussian(Prior):
    """Independent zero-mean Gaussians with the same standard deviation.

    Args:
        scale: standard deviation of a weight, positive; 1 if neither `scale` nor `length_scale` is given.
        length_scale: l, the inverse of the scale, positive; an alternative to `scale`.

    Raises:
        ValueError: both are given, or the value is outside [1e-18, 1e18], where float32 holds no variance.
        TypeError: the value is no real number.

    Example:
        >>> from pyrodrop import priors
        >>> prior = priors.Gaussian(length_scale=2.0)
        >>> prior.scale
        0.5
        >>> prior.expand(8, 4).event_shape
        torch.Size([8, 4])
        >>> round(prior.weight_decay(drop_rate=0.1, num_data=1000, precision=10.0), 6)
        0.00018
    """

    def __init__(self, scale: float | None = None, *, length_scale: float | None = None) -> None:
        if scale is not None and length_scale is not None:
            raise ValueError(
                "a Gaussian prior takes its scale or its length_scale (the inverse), not both; "
                f"got scale={scale} and length_scale={length_scale}"
            )
        if length_scale is not None:
            scale = 1 / arguments.scale(length_scale, "length_scale", "the inverse of the scale of a Gaussian prior")
        value = arguments.scale(1.0 if scale is None else scale, "scale", "the standard deviation of a Gaussian prior")
        self._scale = torch.tensor(value, dtype=torch.float64)

    @property
    def scale(self) -> float:
        """Standard deviation of a weight."""
        return float(self._scale)

    def numbers(self) -> dict[str, Tensor]:
        return {"scale": self._scale}

    @property
    def length_scale(self) -> float:
        """l = 1 / scale."""
        return 1 / self.scale

    @classmethod
    def from_weight_decay(
        cls, weight_decay: float, *, drop_rate: float, num_data: int, precision: float = 1.0
    ) -> Gaussian:
        """The prior under which dropout with this weight decay is variational inference: l^2 = 2 N tau decay / p.

        Args:
            weight_decay: lambda, the factor of ||M||^2 in a loss whose other term is the mean of |y - f|^2 / 2, or of minus
                the log likelihood, such as the cross entropy. An optimiser's ``weight_decay`` adds ``decay * w`` to the
                gradient: then lambda is decay / 2 for a weight w = M, and (1 - drop_rate)^2 decay / 2 for a weight that is
                trained behind `torch.nn.Dropout`, w = (1 - drop_rate) M. `pyrodrop.read` does this for a whole network.
            drop_rate: 1 - p, in [0, 1).
            num_data: N, size of the training set.
            precision: tau, the observation precision in the units of y in which the loss is computed, to the power -2; 1
                where the loss is minus the log likelihood itself, as in classification.

        Raises:
            ValueError: `drop_rate` is outside [0, 1), `weight_decay` or `precision` is not positive and finite, or
                `num_data` is below 1.
            TypeError: an argument is no number.
        """
        check_drop_rate(drop_rate)
        decay = positive(weight_decay, "weight_decay", "the factor of the squared norm of the weights")
        return cls(length_scale=math.sqrt(2 * _total_precision(num_data, precision) * decay / (1 - drop_rate)))

    def weight_decay(self, *, drop_rate: float, num_data: int, precision: float = 1.0) -> float:
        """lambda = p l^2 / (2 N tau) for this prior; the inverse of `from_weight_decay`, with its arguments and errors."""
        check_drop_rate(drop_rate)
        return (1 - drop_rate) * self.length_scale**2 / (2 * _total_precision(num_data, precision))

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return dist.Normal(full(shape, 0.0, like), full(shape, self._scale, like)).to_event(len(shape))

    def describe(self) -> str:
        return f"Gaussian(scale={self.scale:g})"


def _total_precision(num_data: int, precision: float) -> float:
    """N tau, of checked arguments."""
    tau = positive(precision, "precision", "one over the variance of the observation noise")
    return count(num_data, "num_data", "the size of the training set") * tau
