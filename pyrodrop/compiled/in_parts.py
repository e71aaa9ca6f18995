"""Steps whose minibatch is evaluated in parts: one after the other (gradient accumulation), by several processes, or both.

    gradient of the step  =  sum over all parts of  weight * gradient of the loss of the part's rows

where the loss is scaled to the data set, and the weight is the part's share of the rows of the minibatch. So the gradient is
unbiased, and the KL divergence counts once. Every part updates buffers, such as running statistics, in its turn; of several
ranks the mean is taken.

Every part draws noise of its own. There are two programs: the gradient, by Pyro, by a replayed graph or by a compiled one,
and the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pyrodrop.steps.batch import Arguments, Shapes
from pyrodrop.compiled.engine import Engine
from pyrodrop.steps import Plan
from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.inductor import any_number, check_same, compile_pure, for_some_noise
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.steps import Update
from pyrodrop.devices import seeded

Average = Callable[[Tensor], None]


class Part(NamedTuple):
    """Some rows of the minibatch of a step.

    Attributes:
        batch: the rows; its ``num_data`` is the size of the whole data set.
        weight: of its gradient, of which the mean over all ranks is taken.
    """

    batch: Arguments
    weight: float


class Joint(NamedTuple):
    """The minibatch of a step, as far as this process evaluates it: at least one part."""

    parts: list[Part]

    @property
    def rows(self) -> int:
        """Number of rows that this process evaluates."""
        return sum(part.batch.rows for part in self.parts)


class Gradient(Protocol):
    """Computes the gradient of a part."""

    name: str

    def prepare(self, joint: Joint) -> None:
        """Trace or compile for parts of these shapes."""

    def of(self, batch: Arguments, factors: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """nll and kl ``[2]``, the gradient of every parameter, and the updated buffers; `factors` are of nll and kl."""


class InParts(Engine):
    """Makes steps whose minibatches are evaluated in parts.

    Args:
        gradient: of a part.
        loss: to minimise.
        optimizer: of the loss's parameters.
        average: replaces a tensor, in place, by its mean over all processes; None for one process.
    """

    def __init__(
        self, gradient: Gradient, loss: Loss, optimizer: torch.optim.Optimizer, average: Average | None = None
    ) -> None:
        self.gradient: Gradient = gradient
        self.loss: Loss = loss
        self.update: Update = Update(optimizer)
        self.average: Average | None = average
        self.leaves: list[Tensor] = loss.leaves
        self.name = gradient.name

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self.loss.refresh()

    def step(self, joint: Joint, index: int) -> Tensor:
        factors = torch.tensor(self.plan.factors[index], dtype=torch.float64).to(self.leaves[0])
        total: Tensor | float = 0.0
        for part in joint.parts:
            terms, gradients, moved = self.gradient.of(part.batch, factors)
            total = total + part.weight * torch.cat([value.reshape(-1) for value in (terms, *gradients)])
            self.loss.moving.take(moved)
        assert isinstance(total, Tensor)
        if self.average is not None:
            total = self._averaged(total, self.average)
        terms, *gradients = total.split([2, *(leaf.numel() for leaf in self.leaves)])
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient.view_as(leaf).to(leaf.dtype)
        self.update(self.plan.rates[index])
        return terms

    def _averaged(self, total: Tensor, average: Average) -> Tensor:
        """The mean over ranks; buffers get that of their floating-point values."""
        buffers = [buffer for buffer in self.loss.buffers if buffer.is_floating_point()]
        flat = torch.cat([total, *(buffer.reshape(-1) for buffer in buffers)])
        average(flat)
        total, *means = flat.split([len(total), *(buffer.numel() for buffer in buffers)])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))
        return total

    def finish(self, steps: int) -> None:
        self.update.clear()


class ByPyro:
    """The gradient by Pyro's handlers, for any model and guide."""

    name = "pyro"

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def prepare(self, joint: Joint) -> None:
        pass

    def of(self, batch: Arguments, factors: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        moving = self.loss.moving
        with moving.replaced([buffer.clone() for buffer in moving.tensors()]) as moved:
            terms, gradients = self.loss.gradients(batch, factors)
            after = [buffer.detach() for buffer in moved()]
        return terms, gradients, after


class ByGraph:
    """The gradient by a graph, replayed operation by operation."""

    name = "traced"

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def prepare(self, joint: Joint) -> None:
        for part in joint.parts:
            self.loss.graph(part.batch)

    def of(self, batch: Arguments, factors: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
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

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self._programs: dict[Shapes, Callable[..., Any]] = {}

    def prepare(self, joint: Joint) -> None:
        super().prepare(joint)
        for part in joint.parts:
            if part.batch.shapes not in self._programs:
                self._programs[part.batch.shapes] = compiled_gradient(self.loss, part.batch)

    def run(self, graph: Graph, batch: Arguments, inputs: list[Tensor]) -> Sequence[Tensor]:
        return self._programs[batch.shapes](*inputs)  # type: ignore[no-any-return]


def compiled_gradient(loss: Loss, batch: Arguments) -> Callable[..., Sequence[Tensor]]:
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
