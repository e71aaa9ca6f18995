"""Every step by replaying a graph of the gradient, operation by operation; the optimiser is torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrodrop.engines.engine import Plan, set_rates
from pyrodrop.engines.graph import Batch, Graph, Parameter, trace
from pyrodrop.engines.moving import Moving

Shapes = tuple[torch.Size, ...]


class Traced:
    """Every step by replaying a graph of the gradient; a graph for each shape of minibatch."""

    name = "traced"

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        parameters: Mapping[str, Parameter],
        optimizer: torch.optim.Optimizer,
        precision: torch.dtype | None,
        moving: Moving | None = None,
    ) -> None:
        self.model, self.guide, self.optimizer, self.precision = model, guide, optimizer, precision
        self.parameters, self.moving = parameters, moving or Moving()
        self.leaves = [p.unconstrained for p in parameters.values()]
        self._graphs: dict[Shapes, Graph] = {}

    @property
    def buffers(self) -> list[Tensor]:
        """What a step moves beside the leaves."""
        return self.moving.tensors()

    def graph(self, batch: Batch) -> Graph:
        """The graph for minibatches of this shape."""
        if batch.shapes not in self._graphs:
            one = trace(self.model, self.guide, self.parameters, batch, self.precision, self.moving)
            self._graphs[batch.shapes] = one
        return self._graphs[batch.shapes]

    def begin(self, plan: Plan) -> None:
        self.plan = plan
        self._factors = torch.tensor(plan.factors).to(self.leaves[0])

    def step(self, batch: Batch, index: int) -> Tensor:
        graph = self.graph(batch)
        factors = self._factors[index]
        with torch.no_grad():
            inputs = (*self.buffers, *batch.tensors, factors, *graph.constants, *graph.draw())
            terms, *results = graph.module(*self.leaves, *inputs)
        for leaf, gradient in zip(self.leaves, results, strict=False):
            leaf.grad = gradient
        self.moving.take(results[len(self.leaves) :])
        set_rates(self.optimizer, self.plan.rates[index])
        self.optimizer.step()
        return terms  # type: ignore[no-any-return]

    def finish(self, steps: int) -> None:
        self.optimizer.zero_grad()
