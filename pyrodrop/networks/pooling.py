"""Max pooling of adjacent windows (stride = kernel size) as a maximum of slices.

    y[i, j] = max over a, b < k of x[k i + a, k j + b]

PyTorch's CPU kernel also finds the index of every maximum, which is only needed for gradients: predictions of a small
convolutional network spent most of their time there. The values are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_POOLS: tuple[Any, ...] = (torch.max_pool2d, functional.max_pool2d)


class PoolsBySlices(TorchFunctionMode):
    """Within the block, compute max pooling on the CPU without gradients as a maximum of slices, if windows allow it."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _POOLS and not torch.is_grad_enabled():
            pooled = _pooled(*args, **kwargs)
            if pooled is not None:
                return pooled
        return func(*args, **kwargs)


def _pooled(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The maxima, or None for windows that overlap, have gaps or go beyond the edges, and for other devices."""
    sizes, steps, edges, gaps = map(_pair, (kernel_size, stride or kernel_size, padding, dilation))
    plain = sizes == steps and edges == (0, 0) and gaps == (1, 1) and not ceil_mode and not return_indices
    if not plain or type(input) is not Tensor or input.device.type != "cpu":
        return None
    (rows, columns), (height, width) = sizes, input.shape[-2:]
    if height < rows or width < columns:
        return None  # an error of PyTorch
    input = functools.reduce(torch.maximum, [input[..., a : height // rows * rows : rows, :] for a in range(rows)])
    return functools.reduce(
        torch.maximum, [input[..., b : width // columns * columns : columns] for b in range(columns)]
    )


def _pair(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value) * (3 - len(value))
