"""Find the tensors that operations of a graph write to, and the nodes that share their memory."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from pyrodrop.changes import written

_OPERATION: Any = type(torch.ops.aten.add.Tensor)
_SHARES = (operator.getitem, torch.ops.aten._unsafe_view.default)


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation writes to."""
    if node.op != "call_function" or not isinstance(node.target, _OPERATION):
        return []
    return [one for one in written(node.target, node.args, node.kwargs) if isinstance(one, fx.Node)]


def base_of(node: fx.Node) -> fx.Node:
    """The base tensor of a view, which may be one of several, as of `torch.chunk`."""
    while node.op == "call_function" and (node.target in _SHARES or getattr(node.target, "is_view", False)):
        node = node.args[0]  # type: ignore[assignment]
    return node
