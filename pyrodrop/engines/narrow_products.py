"""Stacked matrix products with narrow results, the other way round.

    A B  =  (B^T A^T)^T

Libraries compute many small products row by row of the result; rows of a few numbers leave their vectors empty, as in the
gradient of a layer with few inputs. Transposes of operands and result are views; so what was seen through a view before may
need a copy now.
"""

from __future__ import annotations

import torch
from torch import fx

_A = torch.ops.aten
_NARROW = 32  # numbers in a row, two vectors of the widest


def turn_narrow_products(module: fx.GraphModule) -> None:
    """Rewrite every batched product whose result is narrower than 32 and than it is high."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_A.bmm.default):
        *_, rows, columns = node.meta["val"].shape
        if columns < min(rows, _NARROW):
            with graph.inserting_before(node):
                left, right = (graph.call_function(_A.transpose.int, (of, 1, 2)) for of in node.args)
                product = graph.call_function(_A.bmm.default, (right, left))
                turned = graph.call_function(_A.transpose.int, (product, 1, 2))
            node.replace_all_uses_with(turned)
            graph.erase_node(node)
    for view in (_A.view.default, _A._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=view):
            node.target = _A.reshape.default
    module.recompile()
