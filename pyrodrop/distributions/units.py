"""Which entries of a weight belong to one input unit of its layer.

nn.Linear, recurrent and attention layers   [out, in]                     axis 1
nn.Conv*d                                   [out, in / groups, *kernel]   axis 1, unit k of group g is g in / groups + k
nn.ConvTranspose*d                          [in, out / groups, *kernel]   axis 0
nn.Embedding                                [words, out]                  axis 0, a unit is a word
vectors, scales, class tokens               any                           none
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class InputUnits:
    """Where the input units of a weight are.

    Attributes:
        axis: of the weight; None for what is no unit's weight.
        groups: number of groups of a convolution whose weight holds each group's inputs only.
    """

    axis: int | None = 1
    groups: int = 1

    def __post_init__(self) -> None:
        if self.axis is not None and self.axis < 0:
            raise ValueError(f"axis of a weight's input units is counted from the front, 0 or more; got {self.axis}")

    @property
    def outputs(self) -> InputUnits:
        """Where the output units are: along the first axis, or the second where the first counts inputs."""
        return InputUnits(None if self.axis is None else int(self.axis == 0), self.groups)

    def check(self, shape: torch.Size) -> None:
        """Raise a ValueError unless a weight of this shape has such units."""
        if self.axis is None or len(shape) < 2:
            return
        if self.axis >= len(shape) or self.groups < 1 or (self._grouped and shape[0] % self.groups):
            raise ValueError(
                f"a weight of shape {tuple(shape)} has no input units along axis {self.axis} in {self.groups} groups"
            )

    def apply_to(self, shape: torch.Size) -> bool:
        """Whether a weight of this shape has units of several weights each; otherwise every weight is on its own."""
        return self.axis is not None and len(shape) > 1

    def count(self, shape: torch.Size) -> int:
        """Number of units of a weight of this shape."""
        if not self.apply_to(shape):
            return shape.numel()
        return shape[self.axis] * (self.groups if self._grouped else 1)  # type: ignore[index]

    def over(self, noise: Tensor, shape: torch.Size) -> Tensor:
        """Numbers ``[..., units]`` laid out to broadcast against weights ``[..., *shape]``."""
        if self._grouped:
            outputs = shape[0] // self.groups
            split = noise.reshape(*noise.shape[:-1], self.groups, 1, shape[1])
            return split.expand(*split.shape[:-2], outputs, -1).reshape(
                *noise.shape[:-1], shape[0], shape[1], *(1,) * (len(shape) - 2)
            )
        before: int = self.axis  # type: ignore[assignment]
        return noise.reshape(*noise.shape[:-1], *(1,) * before, -1, *(1,) * (len(shape) - before - 1))

    def sum(self, per_weight: Tensor, shape: torch.Size) -> Tensor:
        """Sum over each unit's weights: ``[..., *shape]`` to ``[..., units]``."""
        first, last = per_weight.dim() - len(shape), per_weight.dim()
        if self._grouped:
            kernel = range(first + 2, last)
            matrix = per_weight.sum(list(kernel)) if kernel else per_weight
            return matrix.unflatten(first, (self.groups, -1)).sum(-2).flatten(first)
        return per_weight.sum([d for d in range(first, last) if d - first != self.axis])

    def mean(self, per_weight: Tensor, shape: torch.Size) -> Tensor:
        """Mean over each unit's weights, laid out to broadcast against weights ``[..., *shape]``."""
        if self._grouped:
            return self.over(self.sum(per_weight, shape) * (self.count(shape) / shape.numel()), shape)
        return per_weight.mean([d for d in range(-len(shape), 0) if d + len(shape) != self.axis], keepdim=True)

    @property
    def _grouped(self) -> bool:
        """Whether the axis holds one group's units only."""
        return self.axis == 1 and self.groups > 1
