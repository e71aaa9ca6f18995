"""Many independent steps as one: a graph with a leading axis of replicates.

Optimisers are elementwise, so R fits are one fit of parameters ``[R, ...]``. The traced gradient of one is mapped over them
(`torch.vmap`), with what they hold in common kept once. Every replicate has a random generator of its own and draws what it
would draw alone. One whose loss or gradient stops being finite stays where it was; the others go on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.engines.compiled import Compiled
from pyrodrop.engines.engine import Plan
from pyrodrop.engines.graph import Batch, Graph, Parameter, loosen_views, trace
from pyrodrop.engines.moving import Moving
from pyrodrop.engines.noise import sources
from pyrodrop.engines.traced import Shapes

_BLOCK = 64  # replicates a call


class StackedGraph:
    """A `Graph` with an axis of replicates on parameters, x, y, noise and outputs, and on what they hold differently.

    Args:
        graph: of the first replicate.
        held: by replicate, the tensors that model and guide hold, by name.
        generators: one a replicate.
        parameters: how many there are, and the buffers that move with them.
        tensors: how many x and y are made of.
    """

    def __init__(
        self,
        graph: Graph,
        held: Sequence[Mapping[str, Tensor]],
        generators: Sequence[torch.Generator],
        parameters: int,
        tensors: int,
    ) -> None:
        self.graph, self.generators = graph, generators
        loosen_views(graph.module)
        names = [_name_of(constant, held[0]) for constant in graph.constants]
        rows = [
            [constant if name is None else own[name] for constant, name in zip(graph.constants, names, strict=True)]
            for own in held
        ]
        self.constants: list[Tensor] = []
        axes: list[int | None] = []
        for column in zip(*rows, strict=True):
            same = all(torch.equal(column[0], other) for other in column[1:])
            self.constants.append(column[0] if same else torch.stack(column))
            axes.append(None if same else 0)
        self.axes = axes
        inputs = (*(0,) * (parameters + tensors), None, *axes, *(0,) * len(graph.noise))
        self.module: Callable[..., Any] = torch.vmap(lambda *given: tuple(graph.module(*given)), in_dims=inputs)
        self.inputs = list(zip(*(graph.noise_of(row) for row in rows), strict=True))
        self.sources = sources(self.inputs, generators)

    def part(self, rows: slice) -> StackedGraph:
        """The same for some of the replicates."""
        part = copy.copy(self)
        part.generators = self.generators[rows]
        part.constants = [c if axis is None else c[rows] for c, axis in zip(self.constants, self.axes, strict=True)]
        part.inputs = [noises[rows] for noises in self.inputs]
        part.sources = sources(part.inputs, part.generators)
        return part

    def shapes(self) -> list[Tensor]:
        """The random inputs without their values."""
        return [noises[0].empty(len(noises)) for noises in self.inputs]

    def draw(self) -> list[Tensor]:
        """Random numbers for one step of all, ``[R, ...]`` each; every replicate draws in the order that it has alone."""
        return [drawn for source in self.sources for drawn in source.draw()]


class Stacked:
    """Steps of all replicates by the mapped graph, replayed; the optimiser is torch's, of the stacked parameters.

    Args:
        trained: model and guide of the first replicate, as the estimator sees them.
        parameters: of the first replicate.
        stacked: all replicates' values of these parameters, ``[R, ...]`` leaves.
        held, generators: see `StackedGraph`.
        optimizer: of `stacked`.
        precision: of matrix products.
        moving: the buffers that each replicate's steps move.
    """

    name = "traced"

    def __init__(
        self,
        trained: tuple[Callable[..., Any], Callable[..., Any]],
        parameters: Mapping[str, Parameter],
        stacked: Sequence[Tensor],
        held: Sequence[Mapping[str, Tensor]],
        generators: Sequence[torch.Generator],
        optimizer: torch.optim.Optimizer,
        precision: torch.dtype | None,
        moving: Sequence[Moving],
    ) -> None:
        self.trained, self.parameters, self.leaves = trained, parameters, list(stacked)
        self.moving = moving[0]
        self.buffers = [torch.stack(own) for own in zip(*(each.tensors() for each in moving), strict=True)]
        self.held, self.generators, self.optimizer, self.precision = held, generators, optimizer, precision
        self.alive = torch.ones(len(held), dtype=torch.bool, device=self.leaves[0].device)
        self.lived = torch.zeros(len(held), dtype=torch.long, device=self.leaves[0].device)  # steps made
        self._graphs: dict[Shapes, StackedGraph] = {}

    def graph(self, batch: Batch) -> StackedGraph:
        """The graph for minibatches of this shape."""
        if batch.shapes not in self._graphs:
            one = trace(*self.trained, self.parameters, batch.at(0), self.precision, self.moving)
            moved = len(self.leaves) + len(self.buffers)
            self._graphs[batch.shapes] = StackedGraph(one, self.held, self.generators, moved, len(batch.tensors))
        return self._graphs[batch.shapes]

    def begin(self, plan: Plan) -> None:
        self.plan = plan
        self._factors = torch.tensor(plan.factors).to(self.leaves[0])

    def step(self, batch: Batch, index: int) -> Tensor:
        graph = self.graph(batch)
        before = [leaf.detach().clone() for leaf in self.leaves]
        with torch.no_grad():
            inputs = (*self.buffers, *batch.tensors, self._factors[index], *graph.constants, *graph.draw())
            terms, *results = graph.module(*self.leaves, *inputs)
        gradients, moved = results[: len(self.leaves)], results[len(self.leaves) :]
        self.alive &= finite(terms, gradients)
        self.lived += self.alive
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        for group, rate in zip(self.optimizer.param_groups, self.plan.rates[index], strict=True):
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            for leaf, old in zip(self.leaves, before, strict=True):
                leaf.copy_(torch.where(_over(self.alive, leaf), leaf, old))
            for buffer, new in zip(self.buffers, moved, strict=True):
                buffer.copy_(torch.where(_over(self.alive, buffer), new, buffer))
        return terms  # type: ignore[no-any-return]

    def finish(self, steps: int) -> None:
        self.optimizer.zero_grad()


class StackedCompiled(Compiled):
    """Steps of all replicates by one compiled program, called for a block of them at a time on a CPU, whose cache then holds
    what the calls in a row hand on."""

    # Where rows are short, what was fused into each of their readers is computed again for every few entries; so less is.
    options: ClassVar[dict[str, Any]] = {"realize_opcount_threshold": 10}

    def __init__(self, stacked: Stacked) -> None:
        super().__init__(stacked)
        self._held += [stacked.alive, stacked.lived]
        count = len(stacked.held)
        size = count if stacked.alive.is_cuda else _block(count)
        self._rows = [slice(first, first + size) for first in range(0, count, size)]
        self._parts = [[held[rows] for held in self._held] for rows in self._rows]
        self._blocks: dict[Shapes, list[StackedGraph]] = {}

    def step(self, batch: Batch, index: int) -> Tensor:
        self.prepare(batch)
        _, program = self._programs[batch.shapes]
        controls = self._controls[index]
        return torch.cat(
            [
                program(*held, *batch.at(rows).tensors, controls, *graph.constants, *graph.draw())[0]
                for rows, held, graph in zip(self._rows, self._parts, self._blocks[batch.shapes], strict=True)
            ]
        )

    def _program(self, batch: Batch) -> tuple[Any, Callable[..., Any]]:
        graph, rows = self.traced.graph(batch), self._rows[0]
        blocks = self._blocks[batch.shapes] = [graph.part(some) for some in self._rows]
        return graph, self._compile(blocks[0], self._parts[0], batch.at(rows))

    def choice(self, terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        was, lived = extra
        alive = was & finite(terms, gradients)
        was.copy_(alive)
        lived.copy_(lived + alive)
        return lambda old, new: torch.where(_over(alive, old), new, old)


def finite(terms: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Which replicates have finite losses and gradients, ``[R]``."""
    sums = torch.stack([terms.sum(1), *(gradient.reshape(len(terms), -1).sum(1) for gradient in gradients)])
    return torch.isfinite(sums).all(0)


def _block(count: int) -> int:
    """Replicates in a call: as many as a core's own cache has room for where networks are small, in equal blocks, for
    which one program serves; all where that cannot be."""
    sizes = [size for size in range(_BLOCK, _BLOCK // 4, -1) if count % size == 0]
    return sizes[0] if count > _BLOCK and sizes else count


def _over(alive: Tensor, values: Tensor) -> Tensor:
    return alive.reshape(-1, *(1,) * (values.dim() - 1))


def _name_of(constant: Tensor, held: Mapping[str, Tensor]) -> str | None:
    """The name under which a model or guide holds this very tensor."""
    for name, value in held.items():
        if value.data_ptr() == constant.data_ptr() and value.shape == constant.shape and value.dtype == constant.dtype:
            return name
    return None
