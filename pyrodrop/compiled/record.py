"""Record the operations of a function of tensors as a graph.

The function is called once, on tensors whose values only this file can read. Every operation of PyTorch that it calls is
computed on the values and becomes a node of the graph. Reading values in Python (a branch on a tensor, `float`, a conversion
to NumPy) raises an error, since a graph could not repeat it; `Tensor.item` returns the tensor, without gradient. Inputs that
require a gradient are parameters; they are recognised wherever the function meets them, such as in Pyro's store. Other
tensors that it meets, such as buffers, become inputs, too.

`torch.fx.experimental.proxy_tensor.make_fx` records in the same way, with tensors that have no values. That takes ten times
as long, and a second more at its first call, in which it imports the compiler.
"""

from __future__ import annotations

import operator
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from pyrodrop.changes import written
from pyrodrop.checks import over_tensors
from pyrodrop.private_apis import arguments_of, intercepted, stand_in, without_dispatch

_A: Any = torch.ops.aten
_OPERATION: Any = type(_A.add.Tensor)
_INDEXES = (_A.index.Tensor, _A.index_put.default, _A.index_put_.default, _A._index_put_impl_.default)
_SHARES = (operator.getitem, _A._unsafe_view.default)


class Value(NamedTuple):
    """Metadata of the result of a node.

    Attributes:
        shape, stride, dtype, device: those of the tensor.
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


class Untraceable(RuntimeError):
    """A training step cannot be turned into a graph or a compiled program; the message says why."""


class Unrecordable(RuntimeError):
    """A function computes something from the values of tensors, which a graph cannot repeat."""


class RecordedTensor(Tensor):
    """A tensor in a recording.

    Attributes:
        value: the tensor with the values; this tensor itself has no memory, so nothing else can read them.
        fixed: whether the function made it only from numbers, as `torch.arange` does, so that its values may be read.
        number: whether it stands for a Python number, the result of `item`.
    """

    value: Tensor
    node: fx.Node
    fixed: bool
    number: bool

    def item(self) -> Any:
        """The tensor itself, without gradient, in place of the number, which makes no difference to arithmetic.

        An integer is read as a number, or raises `Unrecordable` if it may not be read, since it may determine shapes.
        """
        if self.fixed or not self.is_floating_point() or self.numel() != 1:
            return Tensor.item(self)
        number: Any = self.detach()
        number.number = True
        return number

    def __hash__(self) -> int:
        return hash(Tensor.item(self)) if self.number else id(self)

    def __dlpack__(self, **_: Any) -> Any:
        return torch.equal(self, self)  # raises `Unrecordable`, as operations that read values do

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any) -> Any:
        raise Unrecordable(f"{operation} makes another kind of tensor of one in a recording, or comes after its end")


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

    Args:
        inputs: the inputs; those that require a gradient are passed as they are, all others as a `RecordedTensor`.

    Raises:
        Unrecordable: the function computes something from values.
    """
    recorder = _Recorder()
    given = [recorder.input(tensor, number) for number, tensor in enumerate(inputs)]
    nodes = [recorder.node(tensor) for tensor in given]
    with intercepted(recorder.call):
        results = function(*given)
    if recorder.refused is not None:  # though the function has caught the error
        raise recorder.refused
    recorder.graph.output([recorder.node(result) for result in results])
    constants = recorder.constants
    return Recording(recorder.graph, nodes, list(constants), list(constants.values()))


class _Recorder:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.constants: dict[fx.Node, Tensor] = {}  # which also keeps their ids from being used again
        self._nodes: dict[int, fx.Node] = {}
        self.refused: Unrecordable | None = None
        self._parameters: set[int] = set()
        self._written: set[StorageWeakRef] = set()  # memory to which values that are not `fixed` were written
        self._last: fx.Node | None = None

    def input(self, tensor: Tensor, number: int) -> Tensor:
        """An input of the function in place of this tensor; a parameter as it is."""
        node = self._placeholder(f"input_{number}", tensor)
        if not tensor.requires_grad:
            return _wrapped(tensor.detach(), node)
        self._nodes[id(tensor)] = node
        self._parameters.add(id(tensor))
        return tensor

    def node(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor; that of a new constant if the recording has not met it."""
        if isinstance(tensor, RecordedTensor):
            return tensor.node
        if id(tensor) not in self._nodes:
            node = self._placeholder(f"constant_{len(self.constants)}", tensor)
            self._nodes[id(tensor)], self.constants[node] = node, tensor
        return self._nodes[id(tensor)]

    def call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operation on values and record it."""
        try:
            return self._call(operation, args, kwargs)
        except Unrecordable as error:
            self.refused = self.refused or error
            raise

    def _call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if operation is _A.log_sigmoid_backward.default:  # mapped, it warns of an output that it resizes
            slope = self._call(_A.sigmoid.default, (self._call(_A.neg.default, (args[1],), {}),), {})
            return self._call(_A.mul.Tensor, (args[0], slope), {})
        if operation in _INDEXES:
            args = [args[0], self._numbered(args[1]), *args[2:]]
        met: list[Tensor] = []

        def value_of(tensor: Tensor) -> Tensor:
            met.append(tensor)
            return tensor.value if isinstance(tensor, RecordedTensor) else tensor

        values = over_tensors(value_of, (tuple(args), dict(kwargs)))
        loose = [one for one in met if not self._is_fixed(one)]
        if operation is _A._local_scalar_dense.default and not loose:
            return operation(*values[0])
        _refuse(operation, met, loose)
        targets, fixed = written(operation, args, kwargs), not loose and not draws(operation, args, kwargs)
        if any(id(one) in self._parameters for one in targets):
            raise Unrecordable(f"{operation} changes a parameter in place")
        memory = {_memory(one) for one in targets if isinstance(one, RecordedTensor)}
        self._written |= set() if fixed else memory
        if torch.Tag.inplace_view in operation.tags:
            without_dispatch(operation, args, kwargs)  # so that the tensor of the recording has the new shape as well
        result = operation(*values[0], **values[1])
        fresh = operation is _A.lift_fresh.default
        known = [one for one in met if isinstance(one, RecordedTensor) and (one.number or one.fixed)]
        number = len(known) == len(met) and any(one.number for one in known)
        nodes = over_tensors(self.node, (tuple(args), dict(kwargs)))
        node = self.graph.call_function(_A.lift_fresh_copy.default if fresh else operation, *nodes)
        same = {id(one.value): one for one in met if isinstance(one, RecordedTensor)}
        return self._results(result, node, {} if fresh else same, fresh or fixed, number)

    def _numbered(self, indices: Sequence[Any]) -> list[Any]:
        """Indices with the numbers of entries in place of masks that are made only from numbers, which can be mapped."""
        numbers: list[Any] = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype == torch.bool and self._is_fixed(index):
                places = self._call(_A.nonzero.default, (index,), {})
                numbers += [self._call(_A.select.int, (places, 1, axis), {}) for axis in range(index.dim())]
            else:
                numbers.append(index)
        return numbers

    def _is_fixed(self, one: Tensor) -> bool:
        return isinstance(one, RecordedTensor) and one.fixed and _memory(one) not in self._written

    def _results(
        self,
        result: Any,
        node: fx.Node,
        same: Mapping[int, RecordedTensor],
        fixed: bool,
        number: bool = False,
    ) -> Any:
        """A `RecordedTensor` for each result of an operation; a tensor that it has written to stays the same."""
        if isinstance(result, Tensor):
            node.meta["val"] = Value.of(result)
            known = same.get(id(result))
            if known is not None:
                known.node, known.fixed = node, fixed
                return known
            return _wrapped(result, node, fixed, number)
        if isinstance(result, tuple | list):
            return type(result)(
                self._results(one, self.graph.call_function(operator.getitem, (node, place)), same, fixed)
                if isinstance(one, Tensor)
                else one
                for place, one in enumerate(result)
            )
        return result

    def _placeholder(self, name: str, tensor: Tensor) -> fx.Node:
        with self.graph.inserting_after(self._last) if self._last is not None else nullcontext():
            self._last = self.graph.placeholder(name)
        self._last.meta["val"] = Value.of(tensor)
        return self._last


def _refuse(operation: Any, met: Sequence[Tensor], loose: Sequence[Tensor]) -> None:
    """Raise `Unrecordable` unless an operation computes tensors of known shapes from tensors.

    Args:
        loose: the tensors of `met` that are not made only from numbers.
    """
    tags = operation.tags
    if operation.overloadpacket in (_A.set_, _A.resize_, _A.resize_as_):
        raise Unrecordable(f"{operation} changes the memory of a tensor in place")
    if torch.Tag.data_dependent_output in tags:
        raise Unrecordable(f"{operation} gives Python a number that depends on the values of a tensor")
    masks = [one for one in met[1:] if one.dtype in (torch.bool, torch.uint8)] if operation is _A.index.Tensor else met
    if torch.Tag.dynamic_output_shape in tags and any(one is mask for one in loose for mask in masks):
        raise Unrecordable(f"the shape of the result of {operation} depends on the values of a tensor")


def _memory(one: RecordedTensor) -> StorageWeakRef:
    """The memory of a value; its address would be another's once it is freed."""
    return StorageWeakRef(one.value.untyped_storage())


def _wrapped(value: Tensor, node: fx.Node, fixed: bool = False, number: bool = False) -> RecordedTensor:
    made: RecordedTensor = stand_in(RecordedTensor, value)
    made.value, made.node, made.fixed, made.number = value, node, fixed, number
    return made


def draws(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operation draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(operation, "tags", ()):
        return False
    # An operation that contains dropout, such as attention, may have a drop rate of 0.
    rates = [
        args[n] if n < len(args) else kwargs.get(argument.name, argument.default_value)
        for n, argument in enumerate(arguments_of(operation))
        if argument.name == "dropout_p"
    ]
    return not rates or any(rate != 0 for rate in rates)


def is_random(node: fx.Node) -> bool:
    """Whether a node of a graph draws random numbers."""
    return node.op == "call_function" and draws(node.target, node.args, node.kwargs)


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


def users_line(error: BaseException) -> str:
    """The innermost line of the user's program in the traceback of an error, as ", at program.py, line 12: if x > 0:".

    Empty if all lines are of packages, this one, or Python's standard library.
    """
    others = (*map(sysconfig.get_path, ("stdlib", "purelib")), str(Path(__file__).parents[1]), "<frozen")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f", at {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
