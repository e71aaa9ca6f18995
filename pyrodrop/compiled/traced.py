"""Steps that replay a graph of the gradient operation by operation, after which the optimiser updates the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from pyrodrop.compiled.against_pyro import Results
from pyrodrop.compiled.in_blocks import InBlocks
from pyrodrop.compiled.inductor import compiled_gradient
from pyrodrop.compiled.script import scripts_as_they_are
from pyrodrop.steps import Arguments, Plan, Shapes, Update

Program = Callable[..., Sequence[Tensor]]


class ByGraph:
    """The gradient by a graph for each shape of minibatch.

    Args:
        compiled: whether TorchInductor compiles the graphs, which are otherwise replayed operation by operation.
        call: function that returns the program that replays a graph.
    """

    def __init__(self, loss: Any, *, compiled: bool = False, call: Callable[[Any], Program] | None = None) -> None:
        self.name: str = "compiled" if compiled else "traced"
        self.loss: Any = loss  # `Recorded` or `StackedLoss`
        self._call = call or attrgetter("program")
        self.leaves: list[Tensor] = loss.leaves
        self.graphs: dict[Shapes, Any] = {}
        self._programs: dict[Shapes, Program] = {}

    def prepare(self, batch: Arguments) -> None:
        """Trace, and compile, for minibatches of this shape."""
        if batch.shapes not in self.graphs:
            graph = self.loss.graph(batch)
            compiled = self.name == "compiled"
            self._programs[batch.shapes] = compiled_gradient(self.loss, batch) if compiled else self._call(graph)
            self.graphs[batch.shapes] = graph

    def of(self, batch: Arguments, factors: Tensor) -> Results:
        """The gradient with new noise; `factors` are those of nll and kl, ``[2]``."""
        self.prepare(batch)
        with torch.no_grad(), scripts_as_they_are():
            return self.with_noise(batch.shapes, batch.tensors, factors, self.graphs[batch.shapes].draw())

    def with_noise(self, shapes: Shapes, rows: Sequence[Tensor], factors: Tensor, noise: Sequence[Tensor]) -> Results:
        """The gradient with this noise, called without autograd within `scripts_as_they_are`."""
        count = len(self.leaves)
        inputs = [*self.leaves, *self.loss.buffers, *rows, factors, *self.graphs[shapes].constants, *noise]
        terms, *results = self._programs[shapes](*inputs)
        return Results(terms, results[:count], results[count:])


class Traced(InBlocks):
    """Replays the loss's graph at every step; there is one graph for each shape of minibatch."""

    name = "traced"

    def __init__(self, gradient: ByGraph, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(gradient.loss)
        self.gradient: ByGraph = gradient
        self.update: Update = Update(optimizer)

    def prepare(self, batch: Arguments) -> None:
        """Trace the step for minibatches of this shape."""
        if batch.shapes not in self.gradient.graphs:
            self.gradient.prepare(batch)
            self.look_ahead(batch, [self.gradient.graphs[batch.shapes]])

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self._factors = torch.tensor(plan.factors, dtype=torch.float64).to(self.gradient.leaves[0]).unbind(0)

    def advance(self, batches: Any, count: int) -> None:
        with scripts_as_they_are():
            super().advance(batches, count)

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.prepare(batch)
        with torch.no_grad(), scripts_as_they_are():
            return self.make(batch.shapes, batch.tensors, self.gradient.graphs[batch.shapes].draw(), index)

    def make(
        self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int, group: int = 0
    ) -> Tensor:
        results = self.gradient.with_noise(shapes, rows, self._factors[index], noise)
        self.apply(results, self.plan.rates[index])
        return results.terms

    def apply(self, results: Results, rates: Sequence[float]) -> None:
        """Update parameters and buffers."""
        if results.buffers:
            self.gradient.loss.moving.take(results.buffers)
        for leaf, gradient in zip(self.gradient.leaves, results.gradients, strict=True):
            leaf.grad = gradient
        self.update(rates)

    def finish(self, steps: int) -> None:
        self.update.clear()
