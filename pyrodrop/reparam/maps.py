"""Linear maps of a weight as networks write them, brought to one form: y = f(x, w) + bias.

A call of PyTorch is recognised by its function, whatever its calling form. What noise needs to know of a map is which
entries of x are input units and how many examples there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LinearMap:
    """One use of a weight.

    Attributes:
        x: the input, examples first.
        f: linear in both of its arguments; f(x, w) is the output without bias, ``[examples, outputs, ...]``.
        units: axis of x that holds the input units.
        outputs: axis of the output that holds the output units.
        groups: of a convolution; unit k of a group stands at k, k + in, k + 2 in ... along the axis.
        bias: added to the output, or None.
        finish: brings the output to the form that the caller expects.
    """

    x: Tensor
    f: Callable[[Tensor, Tensor], Tensor]
    units: int
    outputs: int
    groups: int = 1
    bias: Tensor | None = None
    finish: Callable[[Tensor], Tensor] = lambda y: y

    def unit_noise(self, draw: Callable[[torch.Size], Tensor]) -> Tensor:
        """One number an example and input unit, by `draw` of a shape ``[..., units]``, laid out to multiply x."""
        if self.units == -1:
            return draw(self.x.shape)
        per_group = draw(torch.Size((self.x.shape[0], self.x.shape[1] // self.groups)))
        return per_group.repeat(1, self.groups).reshape(*per_group.shape[:1], -1, *(1,) * (self.x.dim() - 2))

    def over_outputs(self, per_output: Tensor) -> Tensor:
        """Numbers ``[out]`` or ``[examples, out]`` laid out to broadcast against the output."""
        if self.outputs == -1:
            return per_output
        return per_output.reshape(*per_output.shape, *(1,) * (self.x.dim() - 2))


def recognise(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], weight: Tensor
) -> LinearMap | None:
    """The map that a call of `func` is in `weight`, or None if it is not one that noise can be pushed through."""
    build = _BUILDERS.get(func)
    return None if build is None else build(weight, *args, **kwargs)


def _linear(w: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> LinearMap | None:
    if weight is not w or input is w or weight.dim() != 2:
        return None
    return LinearMap(input, F.linear, -1, -1, bias=bias)


def _matmul(w: Tensor, input: Tensor, other: Tensor, **_: Any) -> LinearMap | None:
    if other is w and getattr(w, "transposed", False) and input is not w:  # x @ W.T
        return LinearMap(input, F.linear, -1, -1)
    if (
        input is w and not getattr(w, "transposed", False) and other is not w and w.dim() == 2 and other.dim() <= 2
    ):  # W @ x
        return LinearMap(
            other.T if other.dim() == 2 else other, F.linear, -1, -1, finish=lambda y: y.T if y.dim() == 2 else y
        )
    return None


def _addmm(
    w: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> LinearMap | None:
    found = _matmul(w, mat1, mat2)
    if found is None or beta != 1 or alpha != 1 or input is w:
        return None
    done = found.finish
    return LinearMap(found.x, found.f, -1, -1, finish=lambda y: done(y) + input)


def _convolution(conv: Callable[..., Tensor], dims: int) -> Callable[..., LinearMap | None]:
    def build(
        w: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> LinearMap | None:
        if weight is not w or input is w:
            return None
        single = input.dim() == dims + 1

        def f(x: Tensor, kernel: Tensor) -> Tensor:
            return conv(x, kernel, None, stride, padding, dilation, groups)

        x = input.unsqueeze(0) if single else input
        return LinearMap(x, f, 1, 1, groups, bias, (lambda y: y.squeeze(0)) if single else (lambda y: y))

    return build


_BUILDERS: dict[Callable[..., Any], Callable[..., LinearMap | None]] = {
    F.linear: _linear,
    F.conv1d: _convolution(F.conv1d, 1),
    F.conv2d: _convolution(F.conv2d, 2),
    F.conv3d: _convolution(F.conv3d, 3),
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    **dict.fromkeys(
        (
            torch.matmul,
            torch.mm,
            torch.mv,
            torch.Tensor.matmul,
            torch.Tensor.mm,
            torch.Tensor.mv,
            torch.Tensor.__matmul__,
        ),
        _matmul,
    ),
}
