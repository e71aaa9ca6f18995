"""Matrix products of unusual shapes, in forms that are faster than a library's call.

    A B  =  (B^T A^T)^T                         batched, with few columns
    A B  =  sum_k A[:, k] B[k, :]               if one of the three sizes is 1: products and sums of entries

Libraries compute many small products row by row of the result. Short rows, as in the gradient of a layer with few inputs,
use only a part of the processor's vectors. The transposes of operands and result are views with other strides, so a later
view of the result may have to become a copy.

In a layer with one output, every product has a size of 1. For a small product, a call of the library costs more than the
arithmetic; products and sums of entries are compiled into the loops around them.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from pyrodrop.compiled.graph import loosen_views

_A = torch.ops.aten
_NARROW = 32  # numbers per row: two of the widest vectors
_SMALL = 2**16  # products of two numbers
_SUMS_SINCE = "2.13"  # of PyTorch: TorchInductor 2.6 computes other gradients of such a layer from the sums


def rewrite_products(module: fx.GraphModule) -> None:
    """Rewrite narrow and thin products, and turn views into reshapes."""
    turn_narrow_products(module)
    if torch.__version__ >= _SUMS_SINCE:
        spell_out_thin_products(module)


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
    loosen_views(module)


def spell_out_thin_products(module: fx.GraphModule) -> None:
    """Rewrite every small matrix product with one row, one column or one term per sum, on a CPU."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_A.mm.default):
        left, right = node.args
        value = left.meta["val"]  # type: ignore[union-attr]
        (rows, terms), columns = value.shape, right.meta["val"].shape[1]  # type: ignore[union-attr]
        sizes, exact = (rows, terms, columns), value.dtype in (torch.float32, torch.float64)
        if 1 not in sizes or not 0 < math.prod(sizes) <= _SMALL or value.is_cuda or not exact:
            continue
        with graph.inserting_before(node):
            if terms == 1:
                product = graph.call_function(_A.mul.Tensor, (left, right))
            else:
                pair = (left, graph.call_function(_A.t.default, (right,)))
                if columns > 1:
                    pair = (graph.call_function(_A.t.default, (left,)), right)
                entries = graph.call_function(_A.mul.Tensor, pair)
                product = graph.call_function(_A.sum.dim_IntList, (entries, [int(columns == 1)], True))
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    module.recompile()
