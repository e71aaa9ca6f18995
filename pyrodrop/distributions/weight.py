"""Base class of distributions over one weight tensor, which is a single event and has input units.

    loc   [out, in, *kernel], or another layout described by `InputUnits`; or [in], where every element is its own unit

Noise is shared by all weights of an input unit (`per` = "input") or sampled independently per weight (`per` = "weight").

The noise form of a distribution is the weight as a linear function of independent noise:

    W = M diag(s) + sqrt(V) * E + sum_r e_r F_r        M, V, F_r [out, in, ...], s [in], E_ij and e_r ~ N(0, 1)

It is defined once (`WeightDistribution.noise_form`). Everything that propagates noise through a linear map
without sampling W is derived from it, in `pyrodrop.reparam`: the estimator ``local``, and predictions. A distribution that
has none is sampled as a whole weight; ``local`` refuses it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, constraints

from pyrodrop.checks import shown
from pyrodrop.distributions.units import InputUnits

Size = torch.Size | list[int] | tuple[int, ...]
Per: TypeAlias = Literal["input", "weight"]


class ConstantLeftOut(NamedTuple):
    """The constant missing from a KL divergence that is known up to a constant, and how often it is missing.

    Attributes:
        number: number of times that the constant is left out.
        unit: name of what is counted, such as ``weights``.
        same: values that must be equal, besides number and unit, for the constants of two distributions to be equal.
    """

    number: int
    unit: str = "weights"
    same: tuple[Any, ...] = ()


@dataclass(frozen=True)
class NoiseForm:
    """The terms of the equation above. Each is a function, so that asking which terms exist computes nothing.

    Attributes:
        loc: M, of the weight's shape.
        scales: samples of s with a given shape ``[..., in]`` and dtype; None if s = 1.
        variance: V, which broadcasts to the weight's shape; None if the term is absent.
        factors: the F_r, each of the weight's shape; None if the term is absent.
    """

    loc: Callable[[], Tensor]
    scales: Callable[[torch.Size, torch.dtype], Tensor] | None = None
    variance: Callable[[], Tensor] | None = None
    factors: Callable[[], Iterable[Tensor]] | None = None

    @property
    def constant(self) -> bool:
        """Whether there is no noise: W = M."""
        return self.scales is None and self.variance is None and self.factors is None

    @property
    def only_scales(self) -> bool:
        """Whether W = M diag(s)."""
        return self.scales is not None and self.variance is None and self.factors is None


def elements(distribution: Distribution) -> Distribution:
    """The distribution without `Independent`: every part of an event has its own batch dimensions."""
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution


def noise_form(q: Any) -> NoiseForm | None:
    """The noise form of a weight's distribution, which is a `WeightDistribution` or one of independent normal numbers.

    Returns:
        The form, or None for a distribution without one.
    """
    if isinstance(q, Independent) and isinstance(q.base_dist, Normal):
        base = q.base_dist
        return NoiseForm(lambda: base.loc, variance=lambda: base.scale**2)
    return getattr(q, "noise_form", None)


def is_constant(q: Distribution) -> bool:
    """Whether q puts all of its probability on one weight, its ``loc``: dropout at rate 0 and theta = 0."""
    form = noise_form(q)
    return form is not None and form.constant


class WeightDistribution(TorchDistribution):
    """A distribution over one weight tensor with location `loc`.

    Args:
        loc: the location, shape ``batch_shape + event_shape``.
        event_dim: number of trailing dimensions of `loc` that form one weight; all of them if None.
        per: whether the noise is sampled per ``input`` unit or per ``weight``.
        units: which axis of the weight indexes input units. Without an axis every element is its own unit.

    Raises:
        ValueError: `loc` has no dimensions, `event_dim` is out of range, or `units` do not fit the shape of the weight.
        TypeError: `loc` is no tensor of a floating-point dtype.
    """

    arg_constraints: dict[str, constraints.Constraint] = {"loc": constraints.real}  # noqa: RUF012
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        *,
        event_dim: int | None = None,
        per: Per = "weight",
        units: InputUnits = InputUnits(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(loc, Tensor) or not loc.is_floating_point():
            raise TypeError(f"loc is the location of a weight and must be a tensor of real numbers; got {shown(loc)}")
        event_dim = loc.dim() if event_dim is None else event_dim
        if not 1 <= event_dim <= loc.dim():
            raise ValueError(
                f"loc must be a weight with at least one dimension; got shape {tuple(loc.shape)} and event_dim={event_dim}"
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
        """Whether all weights of an input unit share their noise."""
        return self.per == "input" and self.units.apply_to(self.event_shape)

    @property
    def noise_shape(self) -> torch.Size:
        """Shape of the noise of one sample: ``[in]`` if it is shared per input unit, otherwise ``event_shape``."""
        return torch.Size([self.units.count(self.event_shape)]) if self.columns else self.event_shape

    @property
    def fan_out(self) -> int:
        """K, the number of weights that share one noise value."""
        return self.event_shape.numel() // self.noise_shape.numel()

    @property
    def noise_form(self) -> NoiseForm | None:
        """How noise enters the weight. None, the default, means that only whole weights can be sampled."""
        return None

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        """The constant missing from KL divergences that are known up to a constant; by default once per weight."""
        return ConstantLeftOut((self.batch_shape + self.event_shape).numel())

    def over_units(self, noise: Tensor) -> Tensor:
        """Reshape noise ``[..., *noise_shape]`` so that it broadcasts against a weight ``[..., *event_shape]``."""
        return self.units.over(noise, self.event_shape) if self.columns else noise

    def sum_units(self, per_weight: Tensor) -> Tensor:
        """Sum over the weights that share a noise value, from ``[..., *event_shape]`` to ``[..., *noise_shape]``."""
        return self.units.sum(per_weight, self.event_shape) if self.columns else per_weight

    def total(self, per_noise: Tensor) -> Tensor:
        """Sum over all noise values of a sample, from ``[..., *noise_shape]`` to ``[...]``."""
        return per_noise.flatten(-len(self.noise_shape)).sum(-1)

    def total_weights(self, per_weight: Tensor) -> Tensor:
        """Sum over all elements of the weight, from ``[..., *event_shape]`` to ``[...]``."""
        return per_weight.flatten(-len(self.event_shape)).sum(-1)

    def expand(self, batch_shape: Size, _instance: None = None) -> Self:
        """The same distribution for a batch of weights; `batch_shape` is the new batch shape."""
        return self.at(self.loc.expand(torch.Size(batch_shape) + self.event_shape))

    def at(self, loc: Tensor) -> Self:
        """The same distribution with another `loc`, whose leading dimensions are the batch shape."""
        other = copy.copy(self)
        other.__dict__.pop("keep_rate", None)  # which is computed at first use, for the batch shape
        other.loc, other._batch_shape = loc, loc.shape[: loc.dim() - len(self.event_shape)]
        other._validate_args = False
        return other


def check_broadcast(value: Any, name: str, shape: torch.Size, what: str) -> None:
    """Raise a ValueError unless a number or tensor broadcasts to `shape`, the shape of `what`."""
    size = value.shape if isinstance(value, Tensor) else torch.Size()
    fits = len(size) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(size), reversed(shape), strict=False))
    if not fits:
        raise ValueError(f"{name} must broadcast to {list(shape)}, the shape of {what}; got shape {list(size)}")
