"""Graphs as Python functions, if TorchScript lacks an operation or PyTorch lacks TorchScript.

A graph becomes source code with one line per operation. Functions of `torch` parse their arguments faster than the
operations that they call, so a line calls the function if a trial call makes exactly this operation. Results are bitwise
those of TorchScript's interpreter, and take 1.6 times as long for 80 small operations, 1.3 times for those of ten networks
of 64 units. The module that `torch.fx` makes of a graph takes 2.6 and 1.6 times as long.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pyrodrop.compiled.noise import is_random
from pyrodrop.compiled.writes import written_by
from pyrodrop.private_apis import intercepted

_VIEWS = {"view", "expand"}  # methods of tensors, without a function of torch


def function_of_lines(graph: fx.Graph) -> Callable[..., Sequence[Tensor]]:
    """The function of its inputs that a graph computes."""
    known: dict[str, Any] = {}

    def code(value: Any) -> str:
        """The source code of an argument."""
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(code, value))}]"
        if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return constant(value)

    def constant(value: Any) -> str:
        name = f"__{len(known)}"
        known[name] = value
        return name

    last = {used: node for node in graph.nodes for used in node.all_input_nodes if used.op != "placeholder"}
    lines, given = [], []
    for node in graph.nodes:
        if node.op == "placeholder":
            given.append(node.name)
        elif node.op == "output":
            lines.append(f"return {code(node.args[0])}")
        elif node.target is operator.getitem:
            lines.append(f"{node.name} = {code(node.args[0])}[{node.args[1]}]")
        else:
            options = [f"{name}={code(value)}" for name, value in node.kwargs.items()]
            call = constant(_function(node))
            lines.append(f"{node.name} = {call}({', '.join([*map(code, node.args), *options])})")
        done = [used.name for used, user in last.items() if user is node and node.op != "output"]
        lines += [f"del {', '.join(done)}"] if done else []
    exec(f"def run({', '.join(given)}):\n " + "\n ".join(lines), known)
    return known["run"]  # type: ignore[no-any-return]


def _function(node: fx.Node) -> Callable[..., Any]:
    """The function of `torch`, or the method, that calls the operation of a node and nothing else; else the operation."""
    operation: Any = node.target
    name = operation.overloadpacket.__name__
    if name in _VIEWS:
        return getattr(Tensor, name)  # type: ignore[no-any-return]
    function: Any = getattr(torch, name, None)
    if function is None or name.startswith("_") or written_by(node) or is_random(node):
        return operation  # type: ignore[no-any-return]
    called: list[Any] = []

    def call(operation: Any, args: Sequence[Any], kwargs: Any) -> Any:
        called.append(operation)
        return operation(*args, **kwargs)

    def like(one: fx.Node) -> Tensor:
        value = one.meta["val"]
        return torch.zeros(1, dtype=value.dtype, device=value.device).as_strided(value.shape, [0] * len(value.shape))

    try:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), like)  # type: ignore[misc]
        with torch.no_grad(), intercepted(call):
            function(*args, **kwargs)
    except (RuntimeError, TypeError, IndexError, KeyError, ValueError):
        return operation  # type: ignore[no-any-return]
    return function if called == [operation] else operation  # type: ignore[no-any-return]
