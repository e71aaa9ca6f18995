"""Steps that replay a graph of the gradient operation by operation, after which the optimiser updates the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from pyrodrop.compiled.against_pyro import Results
from pyrodrop.compiled.in_blocks import InBlocks
from pyrodrop.compiled.script import scripts_as_they_are
from pyrodrop.steps import Arguments, Plan, Shapes, Update


class Traced(InBlocks):
    """Replays the loss's graph at every step; there is one graph for each shape of minibatch.

    Args:
        program: function from a graph to the program that replays it.
    """

    name = "traced"

    def __init__(
        self, loss: Any, optimizer: torch.optim.Optimizer, program: Callable[[Any], Any] = attrgetter("program")
    ) -> None:
        super().__init__(loss)
        self.loss: Any = loss  # `Recorded` or `StackedLoss`
        self.leaves: list[Tensor] = loss.leaves
        self.update: Update = Update(optimizer)
        self._program = program
        self._graphs: dict[Shapes, tuple[Any, Callable[..., Sequence[Tensor]]]] = {}  # with the program of each

    def prepare(self, batch: Arguments) -> None:
        """Trace the step for minibatches of this shape."""
        if batch.shapes not in self._graphs:
            graph = self.loss.graph(batch)
            self._graphs[batch.shapes] = graph, self._program(graph)
            self.look_ahead(batch, [graph])

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self._factors = torch.tensor(plan.factors, dtype=torch.float64).to(self.leaves[0]).unbind(0)

    def advance(self, batches: Any, count: int) -> None:
        with scripts_as_they_are():
            super().advance(batches, count)

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.prepare(batch)
        with torch.no_grad(), scripts_as_they_are():
            return self.make(batch.shapes, batch.tensors, self._graphs[batch.shapes][0].draw(), index)

    def make(
        self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int, group: int = 0
    ) -> Tensor:
        graph, program = self._graphs[shapes]
        inputs = [*self.leaves, *self.loss.buffers, *rows, self._factors[index], *graph.constants, *noise]
        terms, *results = program(*inputs)
        count = len(self.leaves)
        self.apply(Results(terms, results[:count], results[count:]), self.plan.rates[index])
        return terms

    def apply(self, results: Results, rates: Sequence[float]) -> None:
        """Update parameters and buffers."""
        if results.buffers:
            self.loss.moving.take(results.buffers)
        for leaf, gradient in zip(self.leaves, results.gradients, strict=True):
            leaf.grad = gradient
        self.update(rates)

    def finish(self, steps: int) -> None:
        self.update.clear()
