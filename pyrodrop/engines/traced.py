"""The engine that replays a graph of the gradient, operation by operation; torch's optimiser updates the parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.engines.engine import Plan, set_rates
from pyrodrop.engines.graph import Batch
from pyrodrop.engines.loss import Loss


class Traced:
    """Replays the loss's graph at every step; there is one graph for each shape of minibatch.

    Args:
        loss: to minimise.
        optimizer: of the loss's parameters.
    """

    name = "traced"

    def __init__(self, loss: Loss, optimizer: torch.optim.Optimizer) -> None:
        self.loss, self.optimizer, self.leaves = loss, optimizer, loss.leaves

    def begin(self, plan: Plan) -> None:
        self.plan = plan
        self._factors = torch.tensor(plan.factors, dtype=torch.float64).to(self.leaves[0])

    def step(self, batch: Batch, index: int) -> Tensor:
        graph = self.loss.graph(batch)
        factors = self._factors[index]
        with torch.no_grad():
            inputs = (*self.loss.buffers, *batch.tensors, factors, *graph.constants, *graph.draw())
            terms, *results = graph.module(*self.leaves, *inputs)
        for leaf, gradient in zip(self.leaves, results, strict=False):
            leaf.grad = gradient
        self.loss.moving.take(results[len(self.leaves) :])
        set_rates(self.optimizer, self.plan.rates[index])
        self.optimizer.step()
        return terms  # type: ignore[no-any-return]

    def finish(self, steps: int) -> None:
        self.optimizer.zero_grad()
