"""Random numbers as inputs of a graph.

A traced step draws its noise by a handful of operations. Each is taken out of the graph and becomes an input, and a
`Noise` that draws it by the same operation, in the same order: from the same seed the numbers are Pyro's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pyrodrop.stepper.untraceable import Untraceable

_A: Any = torch.ops.aten


@dataclass(frozen=True)
class Noise:
    """How to draw one random input.

    Attributes:
        kind: the operation.
        like: a tensor of the input's shape, dtype and device; for Bernoulli the probabilities.
        low, high: bounds of whole numbers, high excluded.
    """

    kind: str
    like: Tensor
    low: int = 0
    high: int = 0

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Fresh numbers, from torch's generator if None."""
        return _DRAW[self.kind](self, generator)


_DRAW: Mapping[str, Callable[[Noise, torch.Generator | None], Tensor]] = {
    "normal": lambda n, g: torch.randn(n.like.shape, dtype=n.like.dtype, device=n.like.device, generator=g),
    "uniform": lambda n, g: torch.rand(n.like.shape, dtype=n.like.dtype, device=n.like.device, generator=g),
    "bernoulli": lambda n, g: torch.bernoulli(n.like, generator=g),
    "whole": lambda n, g: torch.randint(
        n.low, n.high, n.like.shape, dtype=n.like.dtype, device=n.like.device, generator=g
    ),
    "bits": lambda n, g: torch.empty_like(n.like).random_(generator=g),
}
_KINDS = {
    _A.randn.default: "normal",
    _A.randn_like.default: "normal",
    _A.normal_.default: "normal",
    _A.rand.default: "uniform",
    _A.rand_like.default: "uniform",
    _A.uniform_.default: "uniform",
    _A.bernoulli.default: "bernoulli",
    _A.randint.default: "whole",
    _A.randint.low: "whole",
    _A.random_.default: "bits",
}


def hoist(graph: fx.Graph, last: fx.Node, constants: Mapping[fx.Node, Tensor]) -> list[Noise]:
    """Make every random number an input behind `last`; how to draw them, in order.

    Raises:
        Untraceable: an unknown operation draws random numbers, or a probability depends on parameters or data.
    """
    found: list[Noise] = []
    for node in list(graph.nodes):
        if not _is_random(node):
            continue
        noise = _noise(node, constants)
        with graph.inserting_after(last):
            last = graph.placeholder(f"noise_{len(found)}")
        last.meta["val"] = node.meta.get("val")
        found.append(noise)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return found


def _is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def _noise(node: fx.Node, constants: Mapping[fx.Node, Tensor]) -> Noise:
    kind = _KINDS.get(node.target)
    default_law = node.target not in (_A.normal_.default, _A.uniform_.default) or len(node.args) == 1
    if kind is None or not default_law:
        raise Untraceable(f"it draws noise by {node.target}, which is not known here as a random input")
    value = node.meta["val"]
    if kind == "bernoulli":
        return Noise(kind, _constant_value(node.args[0], constants))
    like = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    if kind == "whole":
        low, high = (0, node.args[0]) if node.target is _A.randint.default else node.args[:2]
        return Noise(kind, like, int(low), int(high))  # type: ignore[arg-type]
    return Noise(kind, like)


def _constant_value(argument: Any, constants: Mapping[fx.Node, Tensor]) -> Any:
    """The value of a part of the graph that depends on constants alone."""
    if not isinstance(argument, fx.Node):
        return argument
    if argument in constants:
        return constants[argument].detach()
    if argument.op != "call_function" or _is_random(argument):
        raise Untraceable(
            "it draws masks whose rate depends on parameters or data; a learned rate needs a relaxed mask"
        )
    args, kwargs = fx.node.map_aggregate(
        (argument.args, argument.kwargs), lambda a: _constant_value(a, constants) if isinstance(a, fx.Node) else a
    )
    return argument.target(*args, **kwargs)  # type: ignore[operator]
