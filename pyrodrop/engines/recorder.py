"""Recording the operations of a function of tensors as a graph.

The function is called once, on tensors that have values which only this file can read. Every operation of PyTorch that it
makes is made on the values and becomes a node of the graph. What Python would compute from values (a branch on a tensor,
`Tensor.item`, a conversion to NumPy) raises an error, since a graph could not repeat it. Tensors that the function meets
elsewhere, such as buffers, become inputs of the graph as well.

`torch.fx.experimental.proxy_tensor.make_fx` records in the same way, with tensors that have no values. That takes ten times
as long, and a second more at its first call, in which it imports the compiler.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pyrodrop.private_apis import intercepted, stand_in, without_dispatch

_A: Any = torch.ops.aten
COUNT = "count"  # of the results of a node, where there are several, in its `meta`


class Value(NamedTuple):
    """What is known of the result of a node.

    Attributes:
        shape, stride, dtype, device: of the tensor.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def numel(self) -> int:
        return self.shape.numel()

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class Unrecordable(RuntimeError):
    """A function computes something from the values of tensors, which a graph cannot repeat."""


class Recorded(Tensor):
    """A tensor in a recording.

    Attributes:
        value: what it stands for; the tensor itself has no memory, so nothing else can read it.
        node: which computes it.
        fixed: whether the function made it of numbers, as `torch.tensor` does, and not of other tensors.
    """

    value: Tensor
    node: fx.Node
    fixed: bool

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any) -> Any:
        raise Unrecordable(f"{operation} is called on a tensor of a recording that has ended")


class Recording(NamedTuple):
    """A function of tensors as a graph.

    Attributes:
        graph: its placeholders are the inputs, followed by the constants.
        inputs, constants: their nodes.
        met: the constants, which are the tensors that the function met, by reference.
    """

    graph: fx.Graph
    inputs: list[fx.Node]
    constants: list[fx.Node]
    met: list[Tensor]


def recorded(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recording:
    """Call a function of tensors and record its operations.

    Raises:
        Unrecordable: the function computes something from values.
        MissingApi: operations cannot be intercepted.
    """
    recorder = _Recorder()
    given = [recorder.input(tensor, number) for number, tensor in enumerate(inputs)]
    with intercepted(recorder.call):
        results = function(*given)
    recorder.graph.output([recorder.node(result) for result in results])
    constants = recorder.constants
    return Recording(recorder.graph, [one.node for one in given], list(constants), list(constants.values()))


class _Recorder:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.constants: dict[fx.Node, Tensor] = {}  # which also keeps their ids from being used again
        self._nodes: dict[int, fx.Node] = {}
        self._last: fx.Node | None = None

    def input(self, tensor: Tensor, number: int) -> Recorded:
        """An input of the function, in place of this tensor."""
        return _wrapped(tensor.detach(), self._placeholder(f"input_{number}", tensor))

    def node(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor; that of a new constant if the recording has not met it."""
        if isinstance(tensor, Recorded):
            return tensor.node
        if id(tensor) not in self._nodes:
            node = self._placeholder(f"constant_{len(self.constants)}", tensor)
            self._nodes[id(tensor)], self.constants[node] = node, tensor
        return self._nodes[id(tensor)]

    def call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make an operation on values and record it."""
        met: list[Tensor] = []

        def value_of(tensor: Tensor) -> Tensor:
            met.append(tensor)
            return tensor.value if isinstance(tensor, Recorded) else tensor

        values = _mapped(value_of, (tuple(args), dict(kwargs)))
        if operation is _A._local_scalar_dense.default and all(isinstance(one, Recorded) and one.fixed for one in met):
            return operation(*values[0])
        _refuse(operation, met)
        if torch.Tag.inplace_view in operation.tags:
            without_dispatch(operation, args, kwargs)  # so that the tensor of the recording has the new shape as well
        result = operation(*values[0], **values[1])
        fresh = operation is _A.lift_fresh.default
        nodes = _mapped(self.node, (tuple(args), dict(kwargs)))
        node = self.graph.call_function(_A.lift_fresh_copy.default if fresh else operation, *nodes)
        same = {id(one.value): one for one in met if isinstance(one, Recorded)}
        return self._results(result, node, {} if fresh else same, fresh)

    def _results(self, result: Any, node: fx.Node, same: Mapping[int, Recorded], fixed: bool) -> Any:
        """Tensors of the recording in place of the results of an operation; what it has written to stays the same tensor."""
        if isinstance(result, Tensor):
            node.meta["val"] = Value.of(result)
            known = same.get(id(result))
            if known is not None:
                known.node, known.fixed = node, False
                return known
            return _wrapped(result, node, fixed)
        if isinstance(result, tuple | list):
            node.meta[COUNT] = len(result)
            parts = [self._results(one, self._part(node, number), same, False) if isinstance(one, Tensor) else one
                     for number, one in enumerate(result)]  # fmt: skip
            return type(result)(parts)
        return result

    def _part(self, node: fx.Node, number: int) -> fx.Node:
        return self.graph.call_function(operator.getitem, (node, number))

    def _placeholder(self, name: str, tensor: Tensor) -> fx.Node:
        with self.graph.inserting_after(self._last) if self._last is not None else nullcontext():
            self._last = self.graph.placeholder(name)
        self._last.meta["val"] = Value.of(tensor)
        return self._last


def _refuse(operation: Any, met: Sequence[Tensor]) -> None:
    """Raise `Unrecordable` for an operation whose result is not a function of tensors alone with shapes that are known."""
    tags = operation.tags
    if operation.overloadpacket in (_A.set_, _A.resize_, _A.resize_as_):
        raise Unrecordable(f"{operation} changes the memory of a tensor in place")
    if torch.Tag.data_dependent_output in tags:
        raise Unrecordable(f"{operation} gives Python a number that depends on the values of a tensor")
    by_mask = operation is not _A.index.Tensor or any(one.dtype in (torch.bool, torch.uint8) for one in met[1:])
    if torch.Tag.dynamic_output_shape in tags and by_mask:
        raise Unrecordable(f"the shape of the result of {operation} depends on the values of a tensor")


def _wrapped(value: Tensor, node: fx.Node, fixed: bool = False) -> Recorded:
    made: Recorded = stand_in(Recorded, value)
    made.value, made.node, made.fixed = value, node, fixed
    return made


def _mapped(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The arguments of an operation with the function's result in place of every tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple | list):
        return type(tree)([_mapped(function, one) for one in tree])
    if isinstance(tree, dict):
        return {name: _mapped(function, one) for name, one in tree.items()}
    return tree
