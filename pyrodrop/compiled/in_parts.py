"""Steps whose minibatch is evaluated in parts: one after the other (gradient accumulation), by several processes, or both.

There are two programs: the gradient of a part, by a replayed graph or by a compiled one, and the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.inductor import any_number, check_same, compile_pure, for_some_noise
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.devices import seeded
from pyrodrop.steps import Arguments, Engine, Plan, Shapes, Update

Gradients = Callable[[Arguments, Tensor], tuple[Tensor, list[Tensor], list[Tensor]]]
"""From a part and the factors of nll and kl ``[2]`` to nll and kl ``[2]``, the gradient of every parameter, and the updated
buffers."""
Combine = Callable[[Any, Any, Gradients], Tensor]
"""From a minibatch, the factors and `Gradients` to its nll and kl ``[2]``; gives the parameters its gradient."""


class InParts(Engine):
    """Makes steps whose minibatches are evaluated in parts.

    Args:
        gradient: of a part.
        loss: to minimise.
        optimizer: of the loss's parameters.
        combine: gives the parameters the gradient of a minibatch, by that of its parts.
    """

    def __init__(self, gradient: ByGraph, loss: Recorded, optimizer: torch.optim.Optimizer, combine: Combine) -> None:
        self.gradient: ByGraph = gradient
        self.loss: Recorded = loss
        self.update: Update = Update(optimizer)
        self.combine: Combine = combine
        self.name = gradient.name

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self.loss.refresh()

    def step(self, batch: Any, index: int) -> Tensor:
        terms = self.combine(batch, self.plan.factors[index], self.gradient.of)
        self.update(self.plan.rates[index])
        return terms

    def finish(self, steps: int) -> None:
        self.update.clear()


class ByGraph:
    """The gradient by a graph, replayed operation by operation."""

    name = "traced"

    def __init__(self, loss: Recorded) -> None:
        self.loss = loss

    def prepare(self, batch: Arguments) -> None:
        """Record the gradient for parts of this shape."""
        self.loss.graph(batch)

    def of(self, batch: Arguments, factors: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """See `Gradients`."""
        graph, leaves = self.loss.graph(batch), self.loss.leaves
        noise = graph.draw()
        with torch.no_grad():
            held = [*(leaf.detach() for leaf in leaves), *self.loss.buffers]
            terms, *results = self.run(graph, batch, [*held, *batch.tensors, factors, *graph.constants, *noise])
        return terms, results[: len(leaves)], results[len(leaves) :]

    def run(self, graph: Graph, batch: Arguments, inputs: list[Tensor]) -> Sequence[Tensor]:
        """The results of the graph."""
        return graph.evaluate(*inputs)


class ByCompiledGraph(ByGraph):
    """The gradient by a graph that TorchInductor has compiled."""

    name = "compiled"

    def __init__(self, loss: Recorded) -> None:
        super().__init__(loss)
        self._programs: dict[Shapes, Callable[..., Any]] = {}

    def prepare(self, batch: Arguments) -> None:
        super().prepare(batch)
        if batch.shapes not in self._programs:
            self._programs[batch.shapes] = compiled_gradient(self.loss, batch)

    def run(self, graph: Graph, batch: Arguments, inputs: list[Tensor]) -> Sequence[Tensor]:
        return self._programs[batch.shapes](*inputs)  # type: ignore[no-any-return]


def compiled_gradient(loss: Recorded, batch: Arguments) -> Callable[..., Sequence[Tensor]]:
    """The program of the loss's graph for arguments of this shape; it takes what the graph takes.

    Raises:
        Untraceable: there is no graph, the compiler fails, or the program gives other numbers than the graph.
    """
    graph = loss.graph(batch)
    with torch.no_grad():
        factors = torch.ones(2).to(loss.leaves[0])
        leaves = [leaf.detach() for leaf in loss.leaves]
        inputs = [*leaves, *loss.buffers, *batch.tensors, factors, *graph.constants]
        noise = [torch.full_like(like, any_number(like)) for like in graph.shapes()]
        program = compile_pure(graph, [*inputs, *noise])
        tolerance = 2e-3 if loss.precision is None else 0.05

        def compare(noise: list[Tensor]) -> None:
            with seeded(0, batch.device):  # of what the graph itself draws
                terms, *want = graph.module(*inputs, *noise)
            with seeded(0, batch.device):
                ours, *got = program(*inputs, *noise)
            check_same([(terms, ours)], list(zip(want, got, strict=True)), tolerance)

        for_some_noise(graph.shapes(), compare)
    return program
