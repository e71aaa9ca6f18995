"""The engine that replays a graph of the gradient, operation by operation; the optimiser updates the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.in_blocks import InBlocks
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.compiled.script import scripts_as_they_are
from pyrodrop.steps import Plan, Update
from pyrodrop.steps.batch import Arguments, Shapes
from pyrodrop.steps.buffers import Buffers


class Traced(InBlocks):
    """Replays the loss's graph at every step; there is one graph for each shape of minibatch."""

    name = "traced"

    def __init__(self, loss: Recorded, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(loss)
        self.update: Update = Update(optimizer)
        self.leaves: list[Tensor] = loss.leaves
        self.moving: Buffers = loss.moving
        self._graphs: dict[Shapes, Graph] = {}

    def prepare(self, batch: Arguments) -> None:
        """Trace the step for minibatches of this shape."""
        if batch.shapes not in self._graphs:
            self._graphs[batch.shapes] = self.loss.graph(batch)
            self.look_ahead(batch)

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self._factors = torch.tensor(plan.factors, dtype=torch.float64).to(self.leaves[0]).unbind(0)

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.prepare(batch)
        with torch.no_grad(), scripts_as_they_are():
            return self.make(batch.shapes, batch.tensors, self._graphs[batch.shapes].draw(), index)

    def advance(self, batches: Any, count: int) -> None:
        with scripts_as_they_are():
            super().advance(batches, count)

    def make(self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int) -> Tensor:
        graph, moving = self._graphs[shapes], self.moving
        inputs = [*self.leaves, *moving.tensors(), *rows, self._factors[index], *graph.constants, *noise]
        terms, *results = graph.program(*inputs)
        for leaf, gradient in zip(self.leaves, results, strict=False):
            leaf.grad = gradient
        if moving:
            moving.take(results[len(self.leaves) :])
        self.update(self.plan.rates[index])
        return terms

    def changed(self) -> list[Tensor]:
        return []

    def finish(self, steps: int) -> None:
        self.update.clear()
