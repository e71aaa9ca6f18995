"""Linear maps of a weight, as networks write them, in one form: y = f(x, w) + bias.

A call is recognised by its PyTorch function, with positional or keyword arguments; for any other, such as W X, one sample of
the weight is drawn (`pyrodrop.reparam.lazy`). To push noise through a map, three axes
must be known: the axis of x that holds the input units, the axis of the weight with which it is contracted, and the axis of
x that counts examples. The other axes are rows within an example (tokens, nodes, positions), which share the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LinearMap:
    """One use of a weight.

    Attributes:
        x: the input.
        f: linear in both of its arguments; f(x, w) is the output without bias, with as many axes as x.
        units: axis of x that holds the input units.
        outputs: axis of the output that holds the output units.
        axis: axis of the weight that x is contracted with: 1 for ``[out, in, ...]``, 0 for ``[in, out, ...]``.
        bias: added to the output, or None.
        examples: axis of x, and of the output, that counts examples.
    """

    x: Tensor
    f: Callable[[Tensor, Tensor], Tensor]
    units: int
    outputs: int
    axis: int = 1
    bias: Tensor | None = None
    examples: int = 0

    def at_examples(self, axis: int) -> LinearMap | None:
        """This map with its examples along that axis of x; None if x has other entries there."""
        possible = axis < self.x.dim() - 1 if self.units == -1 else axis == 0
        return replace(self, examples=axis) if possible else None

    @property
    def batch(self) -> torch.Size:
        """``[N]``, the number of examples."""
        return torch.Size([self.x.shape[self.examples]])

    def fits(self, q: Any) -> bool:
        """Whether the units that q has noise for are the units of x. They are not if the map contracts another axis."""
        return q.units.axis == self.axis and q.noise_shape[0] == self.x.shape[self.units]

    def unit_noise(self, draw: Callable[[torch.Size], Tensor]) -> Tensor:
        """One number per example and input unit, in a shape that multiplies x; `draw` samples it, ``[N, units]``."""
        return self.over_inputs(draw(torch.Size((*self.batch, self.x.shape[self.units]))))

    def over_inputs(self, per_input: Tensor) -> Tensor:
        """Values ``[units]`` or ``[N, units]`` in a shape that broadcasts against x."""
        return self._laid_out(per_input, self.units)

    def over_outputs(self, per_output: Tensor) -> Tensor:
        """Values ``[out]`` or ``[N, out]`` in a shape that broadcasts against the output."""
        return self._laid_out(per_output, self.outputs)

    def over_examples(self, per_example: Tensor) -> Tensor:
        """Values ``[N]`` in a shape that broadcasts against the output."""
        return self._laid_out(per_example[:, None], -1)

    def _laid_out(self, numbers: Tensor, axis: int) -> Tensor:
        shape = [1] * self.x.dim()
        shape[axis] = numbers.shape[-1]
        if numbers.dim() > 1:
            shape[self.examples] = numbers.shape[0]
        return numbers.reshape(shape)


def recognise(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], weight: Any) -> LinearMap | None:
    """The linear map of `weight` that a call of `func` computes, or None if noise cannot be pushed through the call."""
    build = _BUILDERS.get(func)
    return None if build is None else build(weight, *args, **kwargs)


def _linear(w: Any, input: Tensor, weight: Any, bias: Tensor | None = None) -> LinearMap | None:
    if weight is not w or input is w or w.dim() != 2 or input.dim() == 1:
        return None
    # W in the layout in which it is sampled
    if w.transposed:
        return LinearMap(input, torch.matmul, -1, -1, 0, bias)
    return LinearMap(input, F.linear, -1, -1, 1, bias)


def _matmul(w: Any, input: Any, other: Any, **_: Any) -> LinearMap | None:
    if other is not w or input is w or w.dim() != 2 or input.dim() == 1:
        return None
    return LinearMap(input, F.linear, -1, -1, 1) if w.transposed else LinearMap(input, torch.matmul, -1, -1, 0)


def _convolution(conv: Callable[..., Tensor], dims: int, axis: int) -> Callable[..., LinearMap | None]:
    """Builds the map of a convolution over `dims` dimensions, whose kernel has its input channels at `axis`."""

    def build(
        w: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *settings: Any, **named: Any
    ) -> LinearMap | None:
        if weight is not w or input is w or w.dim() != dims + 2 or input.dim() == dims + 1:  # or a single image
            return None

        def f(x: Tensor, kernel: Tensor) -> Tensor:
            return conv(x, kernel, None, *settings, **named)

        return LinearMap(input, f, 1, 1, axis, bias)

    return build


_BUILDERS: dict[Callable[..., Any], Callable[..., LinearMap | None]] = {
    F.linear: _linear,
    F.conv1d: _convolution(F.conv1d, 1, 1),
    F.conv2d: _convolution(F.conv2d, 2, 1),
    F.conv3d: _convolution(F.conv3d, 3, 1),
    F.conv_transpose1d: _convolution(F.conv_transpose1d, 1, 0),
    F.conv_transpose2d: _convolution(F.conv_transpose2d, 2, 0),
    F.conv_transpose3d: _convolution(F.conv_transpose3d, 3, 0),
    **dict.fromkeys((torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__), _matmul),
}
