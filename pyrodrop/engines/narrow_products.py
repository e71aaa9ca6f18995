"""Batched matrix products with narrow results, computed as the transposed product.

    A B  =  (B^T A^T)^T

Libraries compute many small products row by row of the result, so short rows use only a part of the processor's vectors, as
in the gradient of a layer with few inputs. The transposes of operands and result are views, whose strides differ, so a later
view of the result may have to become a copy.
"""

from __future__ import annotations

import torch
from torch import fx

_A = torch.ops.aten
_NARROW = 32  # numbers per row: two of the widest vectors


def turn_narrow_products(module: fx.GraphModule) -> None:
    """Rewrite every batched product whose result has fewer than 32 columns, and fewer columns than rows."""
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
