"""Random numbers as inputs of a graph.

A traced step draws its noise by a handful of operations. Each is taken out of the graph and becomes an input, and a
`Noise` that draws it by the same operation, in the same order: from the same seed the numbers are Pyro's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    def draw(self, generator: torch.Generator | None = None, out: Tensor | None = None) -> Tensor:
        """Fresh numbers, from torch's generator if None; written to `out` if given."""
        place = torch.empty_like(self.like) if out is None else out
        return _DRAW[self.kind](self, place, generator)


_DRAW: Mapping[str, Callable[[Noise, Tensor, torch.Generator | None], Tensor]] = {
    "normal": lambda _, place, g: place.normal_(generator=g),
    "uniform": lambda _, place, g: place.uniform_(generator=g),
    "bernoulli": lambda n, place, g: torch.bernoulli(n.like, generator=g, out=place),
    "whole": lambda n, place, g: place.random_(n.low, n.high, generator=g),
    "bits": lambda _, place, g: place.random_(generator=g),
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


def hoist(graph: fx.Graph, last: fx.Node, constants: list[fx.Node]) -> Callable[[Sequence[Tensor]], list[Noise]]:
    """Make every random number an input behind `last`; how to draw them, in order, given the constants' values.

    Raises:
        Untraceable: an unknown operation draws random numbers, or a probability depends on parameters or data.
    """
    recipes: list[Callable[[Mapping[fx.Node, Tensor]], Noise]] = []
    for node in list(graph.nodes):
        if not _is_random(node):
            continue
        recipes.append(_recipe(node, set(constants)))
        with graph.inserting_after(last):
            last = graph.placeholder(f"noise_{len(recipes) - 1}")
        last.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(last)
        graph.erase_node(node)

    def noise_of(values: Sequence[Tensor]) -> list[Noise]:
        known = dict(zip(constants, values, strict=True))
        return [recipe(known) for recipe in recipes]

    return noise_of


def _is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def _recipe(node: fx.Node, constants: set[fx.Node]) -> Callable[[Mapping[fx.Node, Tensor]], Noise]:
    """From the constants' values to the noise that `node` draws."""
    kind = _KINDS.get(node.target)
    default_law = node.target not in (_A.normal_.default, _A.uniform_.default) or len(node.args) == 1
    if kind is None or not default_law:
        raise Untraceable(f"it draws noise by {node.target}, which is not known here as a random input")
    if kind == "bernoulli":
        rates = _program(node.args[0], constants)
        return lambda known: Noise(kind, rates(known))
    value = node.meta["val"]
    like = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    low, high = 0, 0
    if kind == "whole":
        low, high = (0, node.args[0]) if node.target is _A.randint.default else node.args[:2]  # type: ignore[assignment]
    return lambda known: Noise(kind, like, low, high)


def _program(node: Any, constants: set[fx.Node]) -> Callable[[Mapping[fx.Node, Tensor]], Any]:
    """A part of the graph that depends on constants alone, as a function of their values."""
    if node in constants:
        return lambda known: known[node]
    if node.op != "call_function" or _is_random(node):
        raise Untraceable(
            "it draws masks whose rate depends on parameters or data; a learned rate needs a relaxed mask"
        )
    inputs = {n: _program(n, constants) for n in node.all_input_nodes}
    target, args, kwargs = node.target, node.args, node.kwargs

    def run(known: Mapping[fx.Node, Tensor]) -> Any:
        values = {n: program(known) for n, program in inputs.items()}
        filled = fx.node.map_arg((args, kwargs), lambda n: values[n])
        return target(*filled[0], **filled[1])

    return run
