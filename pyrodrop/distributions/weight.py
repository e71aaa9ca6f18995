"""What all distributions over one weight share: the weight is a single event, and it has input units.

    loc   [out, in, *kernel], or laid out otherwise as `InputUnits` says; or [in], where every element is a unit of its own

Noise is shared by input unit (`per` = "input": one number for a whole column) or drawn for every weight.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.distributions.noise_form import NoiseForm
from pyrodrop.distributions.units import InputUnits

Size = torch.Size | list[int] | tuple[int, ...]


class ConstantLeftOut(NamedTuple):
    """How often a KL divergence that is known up to a constant leaves that constant out.

    Attributes:
        number: how often.
        unit: what is counted, in words.
        same: what two distributions must have in common for their constants to be equal, besides number and unit.
    """

    number: int
    unit: str = "weights"
    same: tuple[Any, ...] = ()


class WeightDistribution(TorchDistribution):
    """A distribution over a whole weight, with `loc` its location.

    Args:
        loc: shape ``batch_shape + event_shape``.
        event_dim: how many trailing dimensions of `loc` are one weight; all of them if None.
        per: whether noise belongs to an ``input`` unit or to a single ``weight``.
        units: where the weight's input units are. Without an axis every weight is a unit of its own.

    Raises:
        ValueError: a loc without dimensions, or units that a weight of its shape does not have.
    """

    arg_constraints = {"loc": constraints.real}  # noqa: RUF012
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        *,
        event_dim: int | None = None,
        per: Literal["input", "weight"] = "weight",
        units: InputUnits = InputUnits(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        event_dim = loc.dim() if event_dim is None else event_dim
        if not 1 <= event_dim <= loc.dim():
            raise ValueError(
                f"loc is a weight with at least one dimension; got shape {tuple(loc.shape)}, event_dim={event_dim}"
            )
        split = loc.dim() - event_dim
        self.loc = loc
        self.per = per
        self.units = units
        units.check(loc.shape[split:])
        super().__init__(loc.shape[:split], loc.shape[split:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def columns(self) -> bool:
        """Whether noise is shared by input units: one number per unit of a matrix or a convolution."""
        return self.per == "input" and self.units.apply_to(self.event_shape)

    @property
    def noise_shape(self) -> torch.Size:
        """Shape of one draw's noise: ``[in]``, or the weight's."""
        return torch.Size([self.units.count(self.event_shape)]) if self.columns else self.event_shape

    @property
    def fan_out(self) -> int:
        """K, the number of weights that share one number of noise."""
        return self.event_shape.numel() // self.noise_shape.numel()

    @property
    def noise_form(self) -> NoiseForm | None:
        """How noise enters the weight. None, the default, means that only whole weights can be sampled."""
        return None

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        """What a KL divergence of this distribution leaves out where it is known up to a constant: one per weight."""
        return ConstantLeftOut((self.batch_shape + self.event_shape).numel())

    def over_units(self, noise: Tensor) -> Tensor:
        """Noise ``[..., *noise_shape]``, laid out to broadcast against a weight."""
        return self.units.over(noise, self.event_shape) if self.columns else noise

    def sum_units(self, per_weight: Tensor) -> Tensor:
        """Sum over what shares a number of noise: ``[..., *event_shape]`` to ``[..., *noise_shape]``."""
        return self.units.sum(per_weight, self.event_shape) if self.columns else per_weight

    def total(self, per_noise: Tensor) -> Tensor:
        """Sum over a whole draw's noise: ``[..., *noise_shape]`` to ``[...]``."""
        return per_noise.flatten(-len(self.noise_shape)).sum(-1)

    def total_weights(self, per_weight: Tensor) -> Tensor:
        """Sum over the weight: ``[..., *event_shape]`` to ``[...]``."""
        return per_weight.flatten(-len(self.event_shape)).sum(-1)

    def expand(self, batch_shape: Size, _instance: None = None) -> Self:
        """The same law for a batch of weights."""
        return self.at(self.loc.expand(torch.Size(batch_shape) + self.event_shape))

    def at(self, loc: Tensor) -> Self:
        """The same law with another `loc`, whose leading dimensions are the batch."""
        raise TypeError(f"{type(self).__name__} is a weight distribution without at(loc)")
