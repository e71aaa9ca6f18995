"""Which elements of a weight tensor belong to which input unit of its layer.

nn.Linear, recurrent and attention layers   [out, in]                     axis 1
nn.Conv*d                                   [out, in / groups, *kernel]   axis 1, unit k of group g is g in / groups + k
nn.ConvTranspose*d                          [in, out / groups, *kernel]   axis 0
nn.Embedding                                [words, out]                  axis 0, each word is a unit
vectors, scales, class tokens               any                           none

Several consecutive indices may form one unit: where channels of H * W pixels are flattened, a channel is H * W columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrodrop.checks import count


@dataclass(frozen=True)
class InputUnits:
    """Which axis of a weight tensor indexes the input units of its layer.

    Attributes:
        axis: the axis, 0 or larger; None for a parameter that has no input units.
        groups: number of groups of a convolution whose weight has an axis for the inputs of one group only.
        size: number of consecutive indices along the axis that form one unit.

    Raises:
        ValueError: `axis` is negative, `groups` or `size` is below 1, or `size` is not 1 with several groups.
        TypeError: a value is no whole number.
    """

    axis: int | None = 1
    groups: int = 1
    size: int = 1

    def __post_init__(self) -> None:
        if self.axis is not None:
            count(self.axis, "axis", "the axis of the input units, counted from the front,", least=0)
        count(self.groups, "groups", "the number of groups of a convolution")
        count(self.size, "size", "the number of indices that form one unit")
        if self.size > 1 and (self.groups > 1 or self.axis is None):
            raise ValueError(
                "size of the input units must be at least 1, and 1 for grouped convolutions and parameters without units; "
                f"got {self.size}"
            )

    def check(self, shape: torch.Size) -> None:
        """Raise a ValueError unless a weight of this shape can have these units."""
        if self.axis is None or len(shape) < 2:
            return
        if self.axis >= len(shape) or shape[self.axis] % self.size or (self._grouped and shape[0] % self.groups):
            raise ValueError(
                f"units must fit the weight: one of shape {tuple(shape)} has no units of {self.size} indices along axis "
                f"{self.axis} in {self.groups} groups; got {self}"
            )

    def apply_to(self, shape: torch.Size) -> bool:
        """Whether a weight of this shape is divided into these units; otherwise every element is its own unit."""
        return self.axis is not None and len(shape) > 1

    def count(self, shape: torch.Size) -> int:
        """Number of units of a weight of this shape."""
        if not self.apply_to(shape):
            return shape.numel()
        return shape[self.axis] // self.size * (self.groups if self._grouped else 1)  # type: ignore[index]

    def over(self, noise: Tensor, shape: torch.Size) -> Tensor:
        """Reshape values per unit, ``[..., units]``, so that they broadcast against weights ``[..., *shape]``."""
        if self._grouped:
            outputs = shape[0] // self.groups
            split = noise.reshape(*noise.shape[:-1], self.groups, 1, shape[1])
            return split.expand(*split.shape[:-2], outputs, -1).reshape(
                *noise.shape[:-1], shape[0], shape[1], *(1,) * (len(shape) - 2)
            )
        if self.size > 1:
            noise = noise.unsqueeze(-1).expand(*noise.shape, self.size).flatten(-2)
        before: int = self.axis  # type: ignore[assignment]
        return noise.reshape(*noise.shape[:-1], *(1,) * before, -1, *(1,) * (len(shape) - before - 1))

    def sum(self, per_weight: Tensor, shape: torch.Size) -> Tensor:
        """Sum over the elements of each unit, from ``[..., *shape]`` to ``[..., units]``."""
        first, last = per_weight.dim() - len(shape), per_weight.dim()
        if self._grouped:
            kernel = range(first + 2, last)
            matrix = per_weight.sum(list(kernel)) if kernel else per_weight
            return matrix.unflatten(first, (self.groups, -1)).sum(-2).flatten(first)
        along = per_weight.sum([d for d in range(first, last) if d - first != self.axis])
        return along if self.size == 1 else along.unflatten(-1, (-1, self.size)).sum(-1)

    def mean(self, per_weight: Tensor, shape: torch.Size) -> Tensor:
        """Mean over the elements of each unit, in a shape that broadcasts against weights ``[..., *shape]``."""
        if self._grouped or self.size > 1:
            return self.over(self.sum(per_weight, shape) * (self.count(shape) / shape.numel()), shape)
        return per_weight.mean([d for d in range(-len(shape), 0) if d + len(shape) != self.axis], keepdim=True)

    @property
    def _grouped(self) -> bool:
        """Whether the axis indexes the units of one group only."""
        return self.axis == 1 and self.groups > 1
