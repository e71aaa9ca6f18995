"""Simplify graphs, with bitwise the same results.

A recorded step has many operations that its replay does not need: tensors are detached, expanded to their own shape and
transposed twice, the same number is computed at several places, and some numbers are the same in every step, such as the
entropy of a mask whose rate is fixed.

    an operation that returns its argument unchanged     is replaced by the argument
    a value that is computed twice                       is computed once
    a small value that depends only on constants         moves into a separate graph, which is run once for many steps

No arithmetic is changed: x + 0 stays, and so does the order of every sum. Operations that draw random numbers, or share
memory with a tensor that the graph writes to, are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pyrodrop.compiled.noise import NOISE, is_random
from pyrodrop.compiled.recorder import Value
from pyrodrop.compiled.writes import base_of, written_by

_A: Any = torch.ops.aten
_SAME = {_A.detach.default, _A.alias.default, _A.lift_fresh_copy.default, _A._to_copy.default, _A.clone.default}
_VIEWS = {
    _A.expand.default,
    _A.view.default,
    _A.reshape.default,
    _A._unsafe_view.default,
    _A.slice.Tensor,
    _A.t.default,
}
SMALL = 2**16  # bytes of a constant
_LIKE = {_A.ones_like.default: 1, _A.zeros_like.default: 0}


def simplified(graph: fx.Graph, constants: Sequence[fx.Node]) -> tuple[fx.Graph, fx.Graph]:
    """Divide a graph into the graph of a call and the graph of constants, without unnecessary operations.

    Args:
        graph: a function of tensors, whose inputs come before all operations; it is not changed.

    Returns:
        The graph of a call, whose inputs are those of `graph` with the results of the other graph in place of the constants;
        and the graph that computes these results from the constants.
    """
    return _Simplifier(graph, constants).run()


class _Simplifier:
    def __init__(self, graph: fx.Graph, constants: Sequence[fx.Node]) -> None:
        self.old, self.constants = graph, list(constants)
        written = {base_of(target) for node in graph.nodes for target in written_by(node)}
        touches = {node: {base_of(node), *map(base_of, node.all_input_nodes)} for node in graph.nodes}
        self.kept = {node for node, bases in touches.items() if bases & written or written_by(node) or is_random(node)}
        self.step, self.once = fx.Graph(), fx.Graph()
        self.new: dict[fx.Node, fx.Node] = {}  # in the graph of the step, or in that of the constants
        self.seen: dict[Any, fx.Node] = {}
        self.shared: dict[fx.Node, fx.Node] = {}  # from the graph of the constants to inputs of the step
        self.last: fx.Node | None = None

    def run(self) -> tuple[fx.Graph, fx.Graph]:
        for node in self.old.nodes:
            if node.op == "placeholder":
                graph = self.once if node in self.constants else self.step
                self.new[node] = self._copy(graph, node)
                if graph is self.step and not node.name.startswith(NOISE):
                    self.last = self.new[node]
        for node in self.old.nodes:
            if node.op == "call_function":
                self.new[node] = self._node(node)
            elif node.op == "output":
                self.step.output(fx.node.map_arg(node.args[0], self._of_step))
        self.once.output(list(self.shared))
        for graph in (self.step, self.once):
            graph.eliminate_dead_code()
        return self.step, self.once

    def _node(self, node: fx.Node) -> fx.Node:
        if node in self.kept:
            return self._copy(self.step, node)
        if node.target is _A._to_copy.default and not isinstance(node.args[0], fx.Node):
            return self._filled(node, node.args[0])
        source = self._source(node)
        if source is not None:
            return self.new[source]
        fixed = all(self.new[one].graph is self.once for one in node.all_input_nodes) and _is_small(node)
        if node.target in _LIKE and _is_contiguous(node.meta["val"]) and _is_small(node):
            return self._filled(node, _LIKE[node.target])
        return self._once(self.once if fixed else self.step, node)

    def _once(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """The copy of a node, or an earlier copy of a node that computes the same."""
        of = self._of_step if graph is self.step else self.new.__getitem__
        key = (graph is self.step, node.target, *_key(fx.node.map_arg((node.args, node.kwargs), of)))
        if key not in self.seen:
            self.seen[key] = self._copy(graph, node)
        return self.seen[key]

    def _source(self, node: fx.Node) -> fx.Node | None:
        """The argument that a node returns unchanged, or None."""
        power = node.target is _A.pow.Tensor_Scalar and node.args[1] == 1
        if not power and node.target not in _SAME | _VIEWS:
            return None
        source: Any = node.args[0]
        if node.target is _A.t.default and source.target is _A.t.default and source not in self.kept:
            source = source.args[0]
        elif node.target is _A.t.default:
            return None
        return source if source.meta.get("val") == node.meta["val"] else None

    def _filled(self, node: fx.Node, number: Any) -> fx.Node:
        """A tensor that has this number everywhere."""
        value: Value = node.meta["val"]
        options: Any = {"dtype": value.dtype, "device": value.device}
        key = (type(number), number, value)
        if key not in self.seen:
            made = self.once.call_function(_A.full.default, (list(value.shape), number), options)
            made.meta["val"] = value
            self.seen[key] = made
        return self.seen[key]

    def _of_step(self, node: fx.Node) -> fx.Node:
        """The node of the step for an old node or one of the constants' graph, which becomes an input of the step."""
        new = self.new[node]
        if new.graph is self.step:
            return new
        if new not in self.shared:
            with self.step.inserting_after(self.last):
                self.last = self.shared[new] = self.step.placeholder(f"fixed_{len(self.shared)}")
            self.last.meta = dict(new.meta)
        return self.shared[new]

    def _copy(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        return graph.node_copy(node, self._of_step if graph is self.step else self.new.__getitem__)


def _key(tree: Any) -> tuple[Any, ...]:
    """A hashable form of the arguments of a node, in which numbers of different types differ."""
    if isinstance(tree, tuple | list):
        return (type(tree).__name__, *map(_key, tree))
    if isinstance(tree, dict):
        return ("dict", *((name, _key(tree[name])) for name in sorted(tree)))
    return (type(tree).__name__, tree)


def _is_small(node: fx.Node) -> bool:
    """Whether the results of a node may be kept between calls."""
    results = [node] if "val" in node.meta else [user for user in node.users if "val" in user.meta]
    return all(one.meta["val"].nbytes <= SMALL for one in results)


def _is_contiguous(value: Value) -> bool:
    expected = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
