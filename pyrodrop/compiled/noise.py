"""Random numbers as inputs of a graph.

A traced step draws its noise with a few operations. Each of them is replaced by an input of the graph, whose values a
`Noise` draws with the same operation and in the same order, so the same seed gives the same numbers as with Pyro. Noise
whose distribution depends on parameters stays in the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from pyrodrop.compiled.private_apis import arguments_of
from pyrodrop.distributions.coins import Masks, draw_mask, fill_stacked

_A: Any = torch.ops.aten
NOISE = "noise_"  # how the names of random inputs begin


@dataclass(frozen=True)
class Noise:
    """How to draw one random input.

    Attributes:
        kind: the operation.
        like: a tensor of the input's shape, dtype and device; for Bernoulli masks, their probabilities.
        numbers: arguments of the operation, such as the bounds of uniform numbers.
        shape: of coin tosses, to which their probabilities broadcast.
    """

    kind: str
    like: Tensor
    numbers: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    def empty(self) -> Tensor:
        """An uninitialised tensor for draws."""
        if self.kind == "coins":
            return torch.empty(self.shape, dtype=torch.uint8, device=self.like.device)
        return self.like.new_empty(self.like.shape)


@dataclass(frozen=True)
class StackedNoise:
    """How to draw one random input of R replicates, for one step or for several, with one call of torch's default generator.

    Attributes:
        kind, numbers: as of `Noise`; the same for all replicates.
        like: a tensor ``[R, ...]`` of the input's shape, dtype and device; for Bernoulli masks, their probabilities, which
            broadcast to that shape.
        shape: of the input of one replicate.
    """

    kind: str
    like: Tensor
    numbers: tuple[float, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, noises: Sequence[Noise]) -> StackedNoise:
        """That of replicates whose noise differs in probabilities alone."""
        first, count = noises[0], len(noises)
        if first.kind == "coins":
            ones = (1,) * (len(first.shape) - first.like.dim())
            rates = torch.stack([noise.like.reshape(ones + noise.like.shape) for noise in noises])
            return cls(first.kind, rates, (), first.shape)
        stacked = first.kind == "bernoulli"
        like = torch.stack([n.like for n in noises]) if stacked else first.like.new_empty(count, *first.like.shape)
        return cls(first.kind, like, first.numbers, tuple(first.like.shape))

    def some(self, rows: slice) -> StackedNoise:
        """That of some of the replicates."""
        return replace(self, like=self.like[rows])

    def alone(self, replicate: int) -> Noise:
        """That of one replicate."""
        return Noise(self.kind, self.like[replicate], self.numbers, self.shape)

    def empty(self, *steps: int) -> Tensor:
        """An uninitialised tensor ``[*steps, R, ...]`` for draws."""
        dtype = torch.uint8 if self.kind == "coins" else self.like.dtype
        return torch.empty((*steps, len(self.like), *self.shape), dtype=dtype, device=self.like.device)

    def fill(self, place: Tensor) -> None:
        """Draw into a tensor of `empty`, which is different for each replicate and step."""
        if self.kind == "coins":
            fill_stacked(place, self.like)
        elif self.kind == "permutation":
            for row in place.view(-1, place.shape[-1]):
                torch.randperm(len(row), out=row)
        elif self.kind == "bernoulli":
            place.copy_(torch.bernoulli(self.like.expand_as(place)))
        else:
            _FILL[self.kind](Noise(self.kind, self.like, self.numbers), place)


class Source(Protocol):
    """Draws consecutive random inputs of one fit."""

    def draw(self) -> list[Tensor]:
        """New random numbers for each input."""

    def fill(self, places: Iterator[Tensor]) -> None:
        """Draw into the next of these tensors, one per input."""


class Filled:
    """One random input."""

    def __init__(self, noise: Noise) -> None:
        self.noise: Noise = noise

    def draw(self) -> list[Tensor]:
        drawn = self.noise.empty()
        _FILL[self.noise.kind](self.noise, drawn)
        return [drawn]

    def fill(self, places: Iterator[Tensor]) -> None:
        _FILL[self.noise.kind](self.noise, next(places))


class DrawnMasks:
    """Consecutive masks."""

    def __init__(self, noises: Sequence[Noise]) -> None:
        keeps, shapes = [noise.like.double() for noise in noises], [noise.shape for noise in noises]
        self.drawn_masks: Masks = Masks(keeps, shapes)
        even = not keeps[0].is_cuda and all(bool((keep == keep.max()).all()) for keep in keeps)
        rates = [float(keep.flatten()[0]) for keep in keeps]
        self.singles: list[tuple[float, tuple[int, ...]]] | None = (
            list(zip(rates, shapes, strict=True)) if even else None
        )

    def draw(self) -> list[Tensor]:
        if self.singles is not None:
            return [draw_mask(rate, shape) for rate, shape in self.singles]
        return self.drawn_masks.draw()

    def fill(self, places: Iterator[Tensor]) -> None:
        for mask in self.draw():
            next(places).copy_(mask)


def sources(noises: Iterable[Noise]) -> list[Source]:
    """The sources of random inputs, in this order; consecutive masks are drawn together."""
    made: list[Source] = []
    for coins, some in itertools.groupby(noises, lambda noise: noise.kind == "coins"):
        run = list(some)
        made += [DrawnMasks(run)] if coins else map(Filled, run)
    return made


_FILL: Mapping[str, Callable[[Noise, Tensor], Tensor]] = {
    "normal": lambda n, place: place.normal_(*n.numbers),
    "uniform": lambda n, place: place.uniform_(*n.numbers),
    "exponential": lambda n, place: place.exponential_(*n.numbers),
    "cauchy": lambda n, place: place.cauchy_(*n.numbers),
    "bernoulli": lambda n, place: torch.bernoulli(n.like, out=place),
    "whole": lambda n, place: place.random_(*n.numbers),
    "permutation": lambda _, place: torch.randperm(len(place), out=place),
}
_IN_PLACE = {_A.normal_.default, _A.uniform_.default, _A.exponential_.default, _A.cauchy_.default}
_KINDS = {
    _A.randn.default: "normal",
    _A.randn_like.default: "normal",
    _A.normal_.default: "normal",
    _A.rand.default: "uniform",
    _A.rand_like.default: "uniform",
    _A.uniform_.default: "uniform",
    _A.exponential_.default: "exponential",
    _A.cauchy_.default: "cauchy",
    _A.bernoulli.default: "bernoulli",
    _A.randint.default: "whole",
    _A.randint.low: "whole",
    _A.randperm.default: "permutation",
    torch.ops.pyrodrop.coins.default: "coins",
}
# Operations that TorchInductor calls as they are under `fallback_random`; of others a program draws other numbers.
AS_THEY_ARE = {
    _A._standard_gamma.default,
    _A._sample_dirichlet.default,
    _A.poisson.default,
    _A.binomial.default,
    _A.multinomial.default,
    _A.normal_.default,
    _A.randperm.default,
    _A.randn.default,
    _A.rand.default,
}


def hoist(graph: fx.Graph, last: fx.Node, constants: list[fx.Node]) -> Callable[[Sequence[Tensor]], list[Noise]]:
    """Turn random numbers into inputs after `last`; returns how to draw them, given the values of the constants.

    A random number whose distribution depends on parameters or data, such as one of a Gamma distribution, and one of an
    operation that is not known here, is drawn by the graph itself. So are all that follow it, to keep the order.
    """
    recipes: list[Callable[[Mapping[fx.Node, Tensor]], Noise]] = []
    for node in list(graph.nodes):
        if not is_random(node):
            continue
        recipe = _recipe(node, set(constants))
        if recipe is None:
            break
        recipes.append(recipe)
        with graph.inserting_after(last):
            last = graph.placeholder(f"{NOISE}{len(recipes) - 1}")
        last.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(last)
        graph.erase_node(node)

    def noise_of(values: Sequence[Tensor]) -> list[Noise]:
        known = dict(zip(constants, values, strict=True))
        return [recipe(known) for recipe in recipes]

    return noise_of


def draws(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operation draws random numbers."""
    if operation in _KINDS:
        return True
    if torch.Tag.nondeterministic_seeded not in getattr(operation, "tags", ()):
        return False
    arguments = arguments_of(
        operation
    )  # an operation that contains dropout, such as attention, may have a drop rate of 0
    rates = [(a, number) for number, a in enumerate(arguments) if a.name == "dropout_p"]
    given = [args[n] if n < len(args) else kwargs.get(a.name, a.default_value) for a, n in rates]
    return not given or any(rate != 0 for rate in given)


def is_random(node: fx.Node) -> bool:
    """Whether a node of a graph draws random numbers."""
    return node.op == "call_function" and draws(node.target, node.args, node.kwargs)


def _recipe(node: fx.Node, constants: set[fx.Node]) -> Callable[[Mapping[fx.Node, Tensor]], Noise] | None:
    """A function from the values of the constants to the noise that `node` draws; None if that is not all it depends on."""
    kind = _KINDS.get(node.target)
    if kind is None:
        return None
    if kind in ("bernoulli", "coins"):
        rates = _program(node.args[0], constants)
        if rates is None:
            return None
        shape = tuple(node.args[1]) if kind == "coins" else ()  # type: ignore[arg-type]
        return lambda known: Noise(kind, rates(known), shape=shape)
    value = node.meta["val"]
    like = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    numbers: tuple[Any, ...] = node.args[1:] if node.target in _IN_PLACE else ()
    if kind == "whole":
        numbers = (0, node.args[0]) if node.target is _A.randint.default else node.args[:2]
    return lambda known: Noise(kind, like, numbers)


def _program(node: Any, constants: set[fx.Node]) -> Callable[[Mapping[fx.Node, Tensor]], Any] | None:
    """The value of a node as a function of the values of the constants; None if it depends on more."""
    if node in constants:
        return lambda known: known[node]
    if node.op != "call_function" or is_random(node):
        return None
    inputs = {one: _program(one, constants) for one in node.all_input_nodes}
    if None in inputs.values():
        return None
    target, args, kwargs = node.target, node.args, node.kwargs

    def run(known: Mapping[fx.Node, Tensor]) -> Any:
        values = {one: program(known) for one, program in inputs.items() if program is not None}
        filled = fx.node.map_arg((args, kwargs), lambda one: values[one])
        return target(*filled[0], **filled[1])

    return run
