"""Random numbers as inputs of a graph.

A traced step draws its noise by a handful of operations. Each is taken out of the graph and becomes an input, and a
`Noise` that draws it by the same operation, in the same order: from the same seed the numbers are Pyro's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from pyrodrop.distributions.coins import Tosses, toss_one
from pyrodrop.engines.untraceable import Untraceable

_A: Any = torch.ops.aten


@dataclass(frozen=True)
class Noise:
    """How to draw one random input.

    Attributes:
        kind: the operation.
        like: a tensor of the input's shape, dtype and device; for Bernoulli masks their probabilities.
        low, high: bounds of whole numbers, high excluded.
        shape: of coins, whose probabilities broadcast to it.
    """

    kind: str
    like: Tensor
    low: int = 0
    high: int = 0
    shape: tuple[int, ...] = ()

    def empty(self, *batch: int) -> Tensor:
        """A tensor for draws of it."""
        if self.kind == "coins":
            return torch.empty((*batch, *self.shape), dtype=torch.uint8, device=self.like.device)
        return self.like.new_empty((*batch, *self.like.shape))


class Source(Protocol):
    """Random inputs of several replicates, each from its own generator."""

    def draw(self) -> list[Tensor]:
        """Fresh numbers for each input, ``[R, ...]``."""


class Filled:
    """One random input.

    Args:
        noises: by replicate.
        generators: by replicate; torch's where None.
    """

    def __init__(self, noises: Sequence[Noise], generators: Sequence[torch.Generator | None]) -> None:
        self.noises, self.generators = noises, generators

    def draw(self) -> list[Tensor]:
        drawn = self.noises[0].empty(len(self.noises))
        for noise, place, generator in zip(self.noises, drawn.unbind(0), self.generators, strict=True):
            _FILL[noise.kind](noise, place, generator)
        return [drawn]


class Tossed:
    """Masks that are drawn one after the other.

    Args:
        inputs: by mask and replicate.
        generators: by replicate; torch's where None.
    """

    def __init__(self, inputs: Sequence[Sequence[Noise]], generators: Sequence[torch.Generator | None]) -> None:
        keeps = [torch.stack([noise.like.double() for noise in noises]) for noises in inputs]
        shapes = [noises[0].shape for noises in inputs]
        self.tosses = Tosses(keeps, shapes, generators)
        alone = list(generators) == [None] and not keeps[0].is_cuda
        even = alone and all(bool((keep == keep.max()).all()) for keep in keeps)
        rates = [float(keep.flatten()[0]) for keep in keeps]
        self.singles = list(zip(rates, shapes, strict=True)) if even else None

    def draw(self) -> list[Tensor]:
        if self.singles is not None:
            return [toss_one(rate, shape)[None] for rate, shape in self.singles]
        return self.tosses.draw()


def sources(inputs: Iterable[Sequence[Noise]], generators: Sequence[torch.Generator | None]) -> list[Source]:
    """How to draw random inputs, given by input and replicate, in this order; masks in a row are drawn together."""
    found: list[Source] = []
    for coins, some in itertools.groupby(inputs, lambda noises: noises[0].kind == "coins"):
        run = list(some)
        found += [Tossed(run, generators)] if coins else [Filled(noises, generators) for noises in run]
    return found


_FILL: Mapping[str, Callable[[Noise, Tensor, torch.Generator | None], Tensor]] = {
    "normal": lambda _, place, g: place.normal_(generator=g),
    "uniform": lambda _, place, g: place.uniform_(generator=g),
    "bernoulli": lambda n, place, g: torch.bernoulli(n.like, generator=g, out=place),
    "whole": lambda n, place, g: place.random_(n.low, n.high, generator=g),
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
    torch.ops.pyrodrop.coins.default: "coins",
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
    seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _drops_nothing(node)
    return node.op == "call_function" and (seeded or node.target in _KINDS)


def _drops_nothing(node: fx.Node) -> bool:
    """Whether an operation with dropout inside, as attention has, is told to drop at rate 0."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    rates = [(a, number) for number, a in enumerate(arguments) if a.name == "dropout_p"]
    given = [node.args[n] if n < len(node.args) else node.kwargs.get(a.name, a.default_value) for a, n in rates]
    return bool(given) and all(rate == 0 for rate in given)


def _recipe(node: fx.Node, constants: set[fx.Node]) -> Callable[[Mapping[fx.Node, Tensor]], Noise]:
    """From the constants' values to the noise that `node` draws."""
    kind = _KINDS.get(node.target)
    default_law = node.target not in (_A.normal_.default, _A.uniform_.default) or len(node.args) == 1
    if kind is None or not default_law:
        raise Untraceable(f"it draws noise by {node.target}, which is not known here as a random input")
    if kind == "bernoulli":
        rates = _program(node.args[0], constants)
        return lambda known: Noise(kind, rates(known))
    if kind == "coins":
        keep, shape = _program(node.args[0], constants), tuple(node.args[1])  # type: ignore[arg-type]
        return lambda known: Noise(kind, keep(known), shape=shape)
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
