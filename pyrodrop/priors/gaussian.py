"""Gaussian priors, centred at 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import checks
from pyrodrop.checks import count, real
from pyrodrop.distributions.coins import check_drop_rate
from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors.prior import Prior, full

_SHOWN = 8  # scales in a description


class Gaussian(Prior):
    """Independent zero-mean Gaussians with the same standard deviation, or with one for every input unit.

        w    ~ N(0, scale^2),     scale = 1 / length_scale
        w_iq ~ N(0, scale_q^2)    with one scale per input unit q

    The length scale l of the paper has w ~ N(0, l^-2). With drop rate 1 - p, N data points and observation precision tau,
    dropout in the limit theta -> 0 minimises (1/N) sum_n E_n + weight_decay ||M||^2, where E_n = |y_n - f_n|^2 / 2 and

        weight_decay = p l^2 / (2 N tau)

    References:
        Gal & Ghahramani (2016), Dropout as a Bayesian Approximation: Appendix, https://arxiv.org/abs/1506.02157, section 4.

    Args:
        scale: standard deviation of a weight, positive; 1 if neither `scale` nor `length_scale` is given. A list has one
            value for every input unit of the weight, such as the columns of x for a first layer.
        length_scale: l, the inverse of the scale, positive; an alternative to `scale`.
        drawn: whether the initial weights of a model are draws from the prior, in place of those of its network.

    Raises:
        ValueError: both are given, or a value is outside [1e-18, 1e18], the range whose squares float32 can represent. When
            the prior is used: the length of a list differs from the weight's number of input units.
        TypeError: the value is neither a real number nor a list of such, or `drawn` is neither True nor False.

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

    def __init__(
        self,
        scale: float | Sequence[float] | None = None,
        *,
        length_scale: float | Sequence[float] | None = None,
        drawn: bool = False,
    ) -> None:
        self.drawn: bool = checks.flag(drawn, "drawn", "whether initial weights are draws from the prior")
        if scale is not None and length_scale is not None:
            raise ValueError(
                "a Gaussian prior takes its scale or its length_scale (the inverse), not both; "
                f"got scale={scale} and length_scale={length_scale}"
            )
        if length_scale is not None:
            values = _checked(length_scale, "length_scale", "the inverse of the scale of a Gaussian prior")
            self._scale = 1 / torch.tensor(values, dtype=torch.float64, device="cpu")
        else:
            values = _checked(1.0 if scale is None else scale, "scale", "the standard deviation of a Gaussian prior")
            self._scale = torch.tensor(values, dtype=torch.float64, device="cpu")

    @property
    def scale(self) -> float | tuple[float, ...]:
        """Standard deviation of a weight, or that of the weights of every input unit."""
        return tuple(self._scale.tolist()) if self._scale.dim() else float(self._scale)

    def numbers(self) -> dict[str, Tensor]:
        return {"scale": self._scale}

    @property
    def length_scale(self) -> float | tuple[float, ...]:
        """l = 1 / scale."""
        return tuple(1 / each for each in self.scale) if isinstance(self.scale, tuple) else 1 / self.scale

    def weight_decay(self, *, drop_rate: float, num_data: int, precision: float = 1.0) -> float:
        """lambda = p l^2 / (2 N tau) for this prior, the factor of ||M||^2 beside the mean of |y - f|^2 / 2.

        The inverse, the prior of a network that was trained with a weight decay, is that of `pyrodrop.read`.

        Args:
            drop_rate: 1 - p, in [0, 1).
            num_data: N, size of the training set.
            precision: tau, the observation precision in the units of y in which the loss is computed, to the power -2; 1
                where the loss is minus the log likelihood itself, as in classification.

        Raises:
            ValueError: `drop_rate` is outside [0, 1), `precision` is not positive and finite, `num_data` is below 1, or the
                prior has one scale per input unit, and with it one weight decay per unit.
            TypeError: an argument is no number.
        """
        check_drop_rate(drop_rate)
        tau = real(precision, "precision", "one over the variance of the observation noise", above=0)
        total = count(num_data, "num_data", "the size of the training set") * tau
        if isinstance(self.length_scale, tuple):
            raise ValueError(f"scale must be one number for one weight decay; got {len(self.length_scale)} scales")
        return (1 - drop_rate) * self.length_scale**2 / (2 * total)

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return self._over(shape, like)

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        if not self._scale.dim():
            return super().for_site(name, like, units)
        return self._over(like.shape, like, units, repr(name))

    def initial(self, value: Tensor) -> Tensor:
        return torch.randn_like(value) * self._scales(value.shape, value) if self.drawn else value

    def _over(self, shape: tuple[int, ...], like: Tensor | None, *site: Any) -> TorchDistribution:
        return dist.Normal(full(shape, 0.0, like), self._scales(shape, like, *site)).to_event(len(shape))

    def _scales(
        self, shape: tuple[int, ...], like: Tensor | None, units: InputUnits | None = None, name: str = "a weight"
    ) -> Tensor:
        """The scale of every weight; a ValueError if there are not as many as the weight has input units."""
        scale = self._scale
        if scale.dim():
            size, units = torch.Size(shape), units or InputUnits()
            count = units.count(size) if units.apply_to(size) else 0
            if count != len(scale):
                raise ValueError(
                    f"scale must be a number, or have one value for every input unit; {name} of shape {list(shape)} has "
                    f"{count} of them, got {len(scale)} values. For a prior of its own: prior={{'NAME': ..., '*': ...}}"
                )
            scale = units.over(scale, size)
        return full(shape, scale, like)

    def describe(self) -> str:
        values = self.scale if isinstance(self.scale, tuple) else (self.scale,)
        text = ", ".join(f"{value:g}" for value in values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
        return f"Gaussian(scale={f'[{text}]' if isinstance(self.scale, tuple) else text})"


def _checked(value: float | Sequence[float], name: str, what: str) -> float | list[float]:
    """A scale, or a list of scales, one per input unit."""
    if isinstance(value, list | tuple) and value:
        return [checks.scale(each, name, f"{what}, one per input unit,") for each in value]
    return checks.scale(value, name, what)
