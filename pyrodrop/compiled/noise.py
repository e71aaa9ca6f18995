"""Random numbers as inputs of a graph.

A traced step draws its noise with a few operations. Each of them is replaced by an input of the graph, whose values a
`Noise` draws with the same operation and in the same order, so the same seed gives the same numbers as with Pyro. Noise
whose distribution depends on parameters stays in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from pyrodrop.distributions.coins import fill_stacked
from pyrodrop.private_apis import arguments_of

_A: Any = torch.ops.aten
NOISE = "noise_"  # prefix of the names of random inputs


@dataclass(frozen=True)
class Noise:
    """How to draw one random input, of one fit or of replicates.

    Attributes:
        kind: the operation.
        like: a tensor of the input's shape, dtype and device; for masks, their probabilities, which broadcast to that shape.
        numbers: arguments of the operation, such as the bounds of uniform numbers.
        shape: shape of a mask (the kind ``coins``).
    """

    kind: str
    like: Tensor
    numbers: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    @classmethod
    def of_replicates(cls, noises: Sequence[Noise]) -> Noise:
        """The noise ``[R, ...]`` of replicates, whose noise may differ only in probabilities."""
        first, count = noises[0], len(noises)
        if first.kind == "coins":
            axes = (1,) * (len(first.shape) - first.like.dim())
            rates = torch.stack([noise.like.reshape(axes + noise.like.shape) for noise in noises])
            return cls("coins of replicates", rates, (), (count, *first.shape))
        if first.kind == "bernoulli":
            return cls(first.kind, torch.stack([noise.like for noise in noises]))
        return cls(first.kind, first.like.expand(count, *first.like.shape), first.numbers)

    def some(self, rows: slice) -> Noise:
        """The noise of some of the replicates."""
        like = self.like[rows]
        return replace(self, like=like, shape=(len(like), *self.shape[1:]) if self.shape else ())

    def empty(self, *steps: int) -> Tensor:
        """An uninitialised tensor for draws, with the leading dimensions `steps`."""
        masks = self.kind.startswith("coins")
        shape, dtype = (self.shape, torch.uint8) if masks else (self.like.shape, self.like.dtype)
        return torch.empty((*steps, *shape), dtype=dtype, device=self.like.device)

    def fill(self, place: Tensor) -> None:
        """Draw into a tensor of `empty`."""
        _FILL[self.kind](self, place)

    def draw(self) -> Tensor:
        """New random numbers for one step."""
        if self.kind == "coins":
            return torch.ops.pyrodrop.coins(self.like, self.shape)  # type: ignore[no-any-return]
        place = self.empty()
        self.fill(place)
        return place


def _permutations(_: Noise, place: Tensor) -> None:
    for row in place.view(-1, place.shape[-1]):
        torch.randperm(len(row), out=row)


_FILL: Mapping[str, Callable[[Noise, Tensor], object]] = {
    "normal": lambda noise, place: place.normal_(*noise.numbers),
    "uniform": lambda noise, place: place.uniform_(*noise.numbers),
    "exponential": lambda noise, place: place.exponential_(*noise.numbers),
    "cauchy": lambda noise, place: place.cauchy_(*noise.numbers),
    "bernoulli": lambda noise, place: place.copy_(torch.bernoulli(noise.like.expand_as(place))),
    "whole": lambda noise, place: place.random_(*noise.numbers),
    "permutation": _permutations,
    "coins": lambda noise, place: place.copy_(noise.draw()),
    "coins of replicates": lambda noise, place: fill_stacked(place, noise.like),
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
# Operations that TorchInductor calls unchanged under `fallback_random`. For all others, a program draws other numbers.
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
    """Turn random numbers into inputs after `last`. Returns a function from the values of the constants to their `Noise`.

    The graph itself draws random numbers whose distribution depends on parameters or data (a Gamma variate) or whose
    operation is not known here, and all random numbers after the first such draw, to keep the order.
    """
    recipes: list[Callable[[Sequence[Tensor]], Noise]] = []
    for node in list(graph.nodes):
        if not is_random(node):
            continue
        recipe = _recipe(node, constants)
        if recipe is None:
            break
        recipes.append(recipe)
        with graph.inserting_after(last):
            last = graph.placeholder(f"{NOISE}{len(recipes) - 1}")
        last.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return lambda values: [recipe(values) for recipe in recipes]


def draws(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operation draws random numbers."""
    if operation in _KINDS:
        return True
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


def function_of(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> Callable[..., Any] | None:
    """A function from the values of `inputs` to those of `nodes`; None if `nodes` depend on other nodes, too."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)

    def is_copied(node: fx.Node) -> bool:
        if node not in copies:
            if node.op != "call_function" or is_random(node) or not all(map(is_copied, node.all_input_nodes)):
                return False
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return True

    if not all(map(is_copied, nodes)):
        return None
    graph.output([copies[node] for node in nodes])
    return fx.GraphModule({}, graph)


def _recipe(node: fx.Node, constants: Sequence[fx.Node]) -> Callable[[Sequence[Tensor]], Noise] | None:
    """A function from the values of the constants to the noise that `node` draws; None if it depends on other values."""
    kind = _KINDS.get(node.target)
    if kind is None:
        return None
    if kind in ("bernoulli", "coins"):
        rates = function_of([node.args[0]], constants)  # type: ignore[list-item]
        if rates is None:
            return None
        shape = tuple(node.args[1]) if kind == "coins" else ()  # type: ignore[arg-type]
        return lambda values: Noise(kind, rates(*values)[0], shape=shape)
    value = node.meta["val"]
    like = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    numbers: tuple[Any, ...] = node.args[1:] if node.target in _IN_PLACE else ()
    if kind == "whole":
        numbers = (0, node.args[0]) if node.target is _A.randint.default else node.args[:2]
    return lambda values: Noise(kind, like, numbers)
