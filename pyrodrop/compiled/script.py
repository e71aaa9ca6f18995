"""Graphs as programs of TorchScript, whose interpreter calls one operation after the other without Python.

The operations are those of the graph, with the same kernels and therefore the same bits; nothing is fused or reordered.
Where PyTorch has no TorchScript, which is deprecated since 2.9, graphs become functions of Python (`in_python`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from pyrodrop.compiled.private_apis import ScriptBuilder
from pyrodrop.compiled.recorder import COUNT
from pyrodrop.compiled.untraceable import Untraceable
from pyrodrop.private_apis import arguments_of

Call = Callable[..., Sequence[Tensor]]


def script(graph: fx.Graph) -> Call:
    """The function of its inputs that a graph computes, as a program.

    Raises:
        Untraceable: an operation has no form in TorchScript.
    """
    builder, known = ScriptBuilder(), {}
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = builder.input()
        elif node.op == "call_function":
            known[node] = _call(builder, node, known)
        elif node.op == "output":
            return builder.program([known[one] for one in node.args[0]])  # type: ignore[union-attr]
    raise Untraceable("a graph without results has no program")


def scripts_as_they_are() -> AbstractContextManager[None]:
    """Run programs of TorchScript within the block as they were built; by default, their first calls optimise them."""
    execution: Any = getattr(torch.jit, "optimized_execution", None)
    return nullcontext() if execution is None else execution(False)


def _call(builder: ScriptBuilder, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """The value of a node; a list of them for operations with several results."""
    if node.target is operator.getitem:
        return known[node.args[0]][node.args[1]]  # type: ignore[index]
    operation = _with_numbers(node)
    values = []
    for number, argument in enumerate(arguments_of(operation)):
        given = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        values.append(_value(builder, given, str(argument.type), known))
    return builder.call(operation, values, node.meta.get(COUNT, 1))


def _value(builder: ScriptBuilder, given: Any, kind: str, known: dict[fx.Node, Any]) -> Any:
    """The value of an argument of this type."""
    if isinstance(given, fx.Node):
        return known[given]
    if isinstance(given, tuple | list) and any(isinstance(one, fx.Node | None) for one in given):
        return builder.tensors([builder.constant(None) if one is None else known[one] for one in given], kind)
    if "float" in kind:
        given = (
            [float(one) for one in given]
            if isinstance(given, tuple | list)
            else given
            if given is None
            else float(given)
        )
    return builder.constant(list(given) if isinstance(given, tuple) else given, kind)


def _with_numbers(node: fx.Node) -> Any:
    """The operation of a node, in its overload for numbers if a number is passed as a tensor."""
    operation: Any = node.target
    given = zip(arguments_of(operation), node.args, strict=False)
    if not any(str(argument.type) == "Tensor" and isinstance(value, int | float) for argument, value in given):
        return operation
    packet = operation.overloadpacket
    if "Scalar" not in packet.overloads():
        raise Untraceable(f"{operation} has no form for numbers")
    return packet.Scalar
