"""Operations under `torch.vmap` for an unknown number of rows, where PyTorch's rules need a fixed number.

linear map, also in attention    x W^T + b
layer and batch norm             (x - mean) / (var + eps)^(1/2) w + b
embedding                        w[ids]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrodrop.private_apis import body_of
from pyrodrop.recurrence import elementary
from pyrodrop.reparam.lazy import LazyWeight


@contextmanager
def for_any_rows() -> Iterator[None]:
    """Replace these operations, attention and recurrent layers by forms that `torch.vmap` can map for any number of rows."""
    with elementary(), _Mode():
        yield


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.multi_head_attention_forward:
            whole = [_whole(value) for value in args], {name: _whole(value) for name, value in (kwargs or {}).items()}
            with self:
                return body_of(func)(*whole[0], **whole[1])
        return _OTHERS.get(func, func)(*args, **(kwargs or {}))


def _whole(value: Any) -> Any:
    return value.realise() if isinstance(value, LazyWeight) else value


def drawn(weight: Tensor) -> Tensor:
    """Mark a weight that differs by draw, within the mapped function."""
    weight.drawn = True  # type: ignore[attr-defined]
    return weight


def _linear(input: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    if isinstance(weight, LazyWeight) or isinstance(bias, LazyWeight):
        return F.linear(input, weight, bias)
    y = product(input, weight) if hasattr(weight, "drawn") else input.contiguous() @ weight.mT
    return y if bias is None else y + bias


@torch.library.custom_op("pyrodrop::product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T for weights that differ by draw; under `torch.vmap` one matrix product if x is the same for all draws."""
    return x @ weight.mT


@product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.mT


@product.register_vmap
def _(info: Any, in_dims: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
    of_x, of_weight = in_dims
    weight = weight.movedim(of_weight, 0)
    if of_x is None:
        y = (x @ weight.flatten(0, 1).mT).unflatten(-1, weight.shape[:2])
        return y, y.dim() - 2
    x = x.movedim(of_x, 0)
    return torch.bmm(x.reshape(x.shape[0], -1, x.shape[-1]), weight.mT).reshape(*x.shape[:-1], weight.shape[1]), 0


def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    y = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _embedding(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return weight[input]  # padding, scaling and sparsity concern the gradient, and max_norm is refused before


def _batch_norm(
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    of_channels = (-1, *(1,) * (input.dim() - 2))
    y = (input - running_mean.reshape(of_channels)) * (running_var + eps).rsqrt().reshape(of_channels)
    y = y if weight is None else y * weight.reshape(of_channels)
    return y if bias is None else y + bias.reshape(of_channels)


_OTHERS: dict[Any, Callable[..., Any]] = {
    F.linear: _linear, F.layer_norm: _layer_norm, F.embedding: _embedding, F.batch_norm: _batch_norm,
}  # fmt: skip
