"""Find the tensors that operations of a graph write to, and the nodes that share their memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pyrodrop.compiled.private_apis import arguments_of

_OPERATION: Any = type(torch.ops.aten.add.Tensor)
_SHARES = (operator.getitem, torch.ops.aten._unsafe_view.default)
_BATCH_NORMS = {torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default}


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation writes to."""
    if node.op != "call_function" or not isinstance(node.target, _OPERATION):
        return []
    return [one for one in written(node.target, node.args, node.kwargs) if isinstance(one, fx.Node)]


def written(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operation writes to."""
    if operation in _BATCH_NORMS:  # they write to running statistics, which their signatures do not say
        return list(args[3:5]) if args[5] else []  # in training mode
    places = _written_places(operation)
    values = [args[n] if n < len(args) else kwargs[name] for n, name in places if n < len(args) or name in kwargs]
    return [one for value in values for one in (value if isinstance(value, tuple | list) else [value])]


@functools.cache
def _written_places(operation: Any) -> list[tuple[int, str]]:
    """The positions and names of the arguments that an operation writes to according to its signature."""
    arguments = enumerate(arguments_of(operation))
    return [(n, a.name) for n, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def base_of(node: fx.Node) -> fx.Node:
    """The base tensor of a view, which may be one of several, as of `torch.chunk`."""
    while node.op == "call_function" and (node.target in _SHARES or getattr(node.target, "is_view", False)):
        node = node.args[0]  # type: ignore[assignment]
    return node
