"""Which tensors the operations of a graph write to, and which share their memory."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from pyrodrop.private_apis import arguments_of

_OPERATION: Any = type(torch.ops.aten.add.Tensor)
_SHARES = (operator.getitem, torch.ops.aten._unsafe_view.default)
_BATCH_NORMS = {torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default}


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation writes to."""
    if node.op != "call_function" or not isinstance(node.target, _OPERATION):
        return []
    if node.target in _BATCH_NORMS:  # they write to running statistics, which their signatures do not say
        return [arg for arg in node.args[3:5] if isinstance(arg, fx.Node) and node.args[5]]  # in training mode
    arguments = arguments_of(node.target)
    given = [
        *zip(arguments, node.args, strict=False),
        *((a, node.kwargs[a.name]) for a in arguments if a.name in node.kwargs),
    ]
    written = [value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write]
    tensors = [one for value in written for one in (value if isinstance(value, tuple | list) else [value])]
    return [one for one in tensors if isinstance(one, fx.Node)]


def base_of(node: fx.Node) -> fx.Node:
    """The base tensor of a view, which may be one of several, as of `torch.chunk`."""
    while node.op == "call_function" and (node.target in _SHARES or getattr(node.target, "is_view", False)):
        node = node.args[0]  # type: ignore[assignment]
    return node
