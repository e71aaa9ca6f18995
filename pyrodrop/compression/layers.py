"""Layers without weights that a chain may contain, and the function calls that are equivalent to one of them.

Activations are elementwise. Pooling windows lie within one channel. Functions have other defaults and another order of
arguments than the equivalent modules, so the arguments of a call are bound according to the signature of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

# With the options that are needed to recreate a layer; inplace is left out, because it makes no difference in a chain.
ELEMENTWISE: dict[type[nn.Module], tuple[str, ...]] = {
    nn.ReLU: (),
    nn.ReLU6: (),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.Softplus: ("beta", "threshold"),
    nn.GELU: ("approximate",),
    nn.SiLU: (),
    nn.Mish: (),
    nn.ELU: ("alpha",),
    nn.CELU: ("alpha",),
    nn.SELU: (),
    nn.LeakyReLU: ("negative_slope",),
    nn.Hardtanh: ("min_val", "max_val"),
    nn.Hardswish: (),
    nn.Hardsigmoid: (),
    nn.Softsign: (),
    nn.LogSigmoid: (),
    nn.Tanhshrink: (),
    nn.Hardshrink: ("lambd",),
    nn.Softshrink: ("lambd",),
    nn.Threshold: ("threshold", "value"),
    nn.Identity: (),
}
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_SIZE = ("output_size",)
POOLS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.MaxPool1d: _MAX,
    nn.MaxPool2d: _MAX,
    nn.MaxPool3d: _MAX,
    nn.AvgPool1d: _AVG,
    nn.AvgPool2d: (*_AVG, "divisor_override"),
    nn.AvgPool3d: (*_AVG, "divisor_override"),
    nn.AdaptiveAvgPool1d: _SIZE,
    nn.AdaptiveAvgPool2d: _SIZE,
    nn.AdaptiveAvgPool3d: _SIZE,
}
PLAIN: dict[type[nn.Module], tuple[str, ...]] = {**ELEMENTWISE, **POOLS, nn.Flatten: ("start_dim", "end_dim")}
_QUIET = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

_IN_PLACE = ("inplace",)
_POOL = ("kernel_size", "stride", "padding")
_AVERAGE = (*_POOL, "ceil_mode", "count_include_pad", "divisor_override")
# Function: the equivalent module, the parameters of the function after the input, and its defaults that differ.
_FUNCTIONS: dict[Any, tuple[type[nn.Module], tuple[str, ...], dict[str, Any]]] = {
    **dict.fromkeys((torch.relu, "relu", "relu_", torch.relu_), (nn.ReLU, (), {})),
    F.relu: (nn.ReLU, _IN_PLACE, {}),
    F.relu6: (nn.ReLU6, _IN_PLACE, {}),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", "tanh_", torch.tanh_), (nn.Tanh, (), {})),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_", torch.sigmoid_), (nn.Sigmoid, (), {})),
    F.softplus: (nn.Softplus, ("beta", "threshold"), {}),
    F.gelu: (nn.GELU, ("approximate",), {}),
    F.silu: (nn.SiLU, _IN_PLACE, {}),
    F.mish: (nn.Mish, _IN_PLACE, {}),
    F.elu: (nn.ELU, ("alpha", "inplace"), {}),
    F.celu: (nn.CELU, ("alpha", "inplace"), {}),
    F.selu: (nn.SELU, _IN_PLACE, {}),
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope", "inplace"), {}),
    F.hardtanh: (nn.Hardtanh, ("min_val", "max_val", "inplace"), {}),
    F.hardswish: (nn.Hardswish, _IN_PLACE, {}),
    F.hardsigmoid: (nn.Hardsigmoid, _IN_PLACE, {}),
    F.softsign: (nn.Softsign, (), {}),
    F.logsigmoid: (nn.LogSigmoid, (), {}),
    F.max_pool1d: (nn.MaxPool1d, (*_POOL, "dilation", "ceil_mode", "return_indices"), {}),
    F.max_pool2d: (nn.MaxPool2d, (*_POOL, "dilation", "ceil_mode", "return_indices"), {}),
    F.max_pool3d: (nn.MaxPool3d, (*_POOL, "dilation", "ceil_mode", "return_indices"), {}),
    torch.max_pool2d: (nn.MaxPool2d, (*_POOL, "dilation", "ceil_mode"), {}),
    F.avg_pool1d: (nn.AvgPool1d, _AVERAGE[:-1], {}),
    F.avg_pool2d: (nn.AvgPool2d, _AVERAGE, {}),
    F.avg_pool3d: (nn.AvgPool3d, _AVERAGE, {}),
    F.adaptive_avg_pool1d: (nn.AdaptiveAvgPool1d, _SIZE, {}),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, _SIZE, {}),
    F.adaptive_avg_pool3d: (nn.AdaptiveAvgPool3d, _SIZE, {}),
    **dict.fromkeys((torch.flatten, "flatten"), (nn.Flatten, ("start_dim", "end_dim"), {"start_dim": 0})),
}


def plain_layer(layer: nn.Module) -> tuple[type[nn.Module], dict[str, Any]] | None:
    """Type and options of a layer without weights; None if it is not supported."""
    kind = type(layer)
    if kind in _QUIET and not layer.training:
        return nn.Identity, {}
    if kind not in PLAIN or getattr(layer, "return_indices", False):
        return None
    return kind, {option: getattr(layer, option) for option in PLAIN[kind]}


def plain_call(
    target: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[type[nn.Module], dict[str, Any]] | None:
    """Type and options of the module equivalent to a call with `args` and `kwargs` after the input; None if unsupported."""
    if target not in _FUNCTIONS:
        return None
    kind, names, defaults = _FUNCTIONS[target]
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or any(name not in names for name in given):
        return None
    given.pop("inplace", None)
    return plain_layer(kind(**given))
