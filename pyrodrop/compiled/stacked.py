"""Many independent fits at once: a graph with a leading axis of replicates, and the engine that replays it.

Optimisers are elementwise, so R fits are one fit of parameters ``[R, ...]``. The traced gradient of one replicate is mapped
over all of them (`torch.vmap`); tensors that all replicates share are stored once. torch's default generator draws the noise
of all replicates, independent of each other, in one call per random input. A replicate whose loss or gradient is no longer
finite keeps its last parameters; the others continue.

For small networks, mapping takes longer than the mapped operations. So for many steps it is done once: the operations that
it makes are recorded, and called with the same kernels. Rows and noise are made for several steps at once on a CPU.

Convolutions of R replicates are mapped to one convolution with R groups, which is slower on a CPU than R convolutions. So on
a CPU, a graph with convolutions is called for one replicate after another.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.compiled.against_pyro import Results
from pyrodrop.compiled.graph import Graph, loosen_views
from pyrodrop.compiled.noise import Noise
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.compiled.recorder import recorded
from pyrodrop.compiled.traced import Traced
from pyrodrop.compiled.untraceable import Untraceable, first_line
from pyrodrop.devices import seeded
from pyrodrop.steps import Arguments, Loss, Shapes

_log = logging.getLogger("pyrodrop")
_RECORDED = 2**26  # largest number of entries of all results of a step, which a recording keeps until its end


class StackedGraph:
    """A `Graph` with an axis of replicates on parameters, x, y, noise, outputs, and on constants that differ.

    Args:
        held: for every replicate, the tensors of model and guide that are not parameters, by name.
    """

    draws_itself: tuple[()] = ()

    def __init__(
        self,
        graph: Graph,
        held: Sequence[Mapping[str, Tensor]],
        parameters: int,
        tensors: int,
        device: torch.device,
    ) -> None:
        if graph.draws_itself:
            raise Untraceable(
                "it draws noise whose distribution depends on parameters or data, which replicates cannot draw together"
            )
        self.graph: Graph = graph
        loosen_views(graph.module)
        names = [_name_of(tensor, held[0]) for tensor in graph.met]
        met = {
            id(own): [tensor if name is None else own[name] for tensor, name in zip(graph.met, names, strict=True)]
            for own in {id(own): own for own in held}.values()
        }
        constants = {of: graph.constants_of(row) for of, row in met.items()}
        self.constants: list[Tensor] = []
        axes: list[int | None] = []
        for column in zip(*(constants[id(own)] for own in held), strict=True):
            same = all(column[0] is other or torch.equal(column[0], other) for other in column[1:])
            self.constants.append(column[0] if same else torch.stack(column))
            axes.append(None if same else 0)
        self.axes = axes
        inputs = (*(0,) * (parameters + tensors), None, *axes, *(0,) * len(graph.noise))
        convolves = any(node.target is torch.ops.aten.convolution.default for node in graph.graph.nodes)
        self.looped: bool = convolves and device.type == "cpu"
        one: Callable[..., Any] = lambda *given: tuple(graph.module(*given))  # noqa: E731
        self._mapped: Callable[..., Any] = torch.vmap(one, in_dims=inputs)
        self.module: Callable[..., Any] = _looped(one, inputs) if self.looped else self._mapped
        noises = {of: graph.noise_of(row) for of, row in met.items()}
        self._program: Callable[..., Any] | None = None
        self._alone: list[list[Noise]] = [noises[id(own)] for own in held]
        self.noise: list[Noise] = [Noise.of_replicates(noises) for noises in zip(*self._alone, strict=True)]

    def evaluate(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results for all inputs."""
        return self.module(*inputs)

    def program(self, *inputs: Tensor) -> Sequence[Tensor]:
        """As `evaluate`, by the operations of the mapped graph, which the first call records."""
        if self._program is None:
            self._program = self._recorded([value.detach() for value in inputs])
        return self._program(*inputs)  # type: ignore[no-any-return]

    def _recorded(self, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        """The mapped graph as a program; `module` if that is a loop, or if the graph is too large or cannot be recorded."""
        if self.looped or self.graph.entries * len(inputs[0]) > _RECORDED:
            return self.module
        wanted = self.module(*inputs)
        try:
            recording = recorded(self.module, inputs)
            graph = Graph(recording.graph, dict(zip(recording.constants, recording.met, strict=True)), lambda _: [])
            same = all(map(torch.equal, wanted, graph.evaluate(*inputs, *graph.constants)))
        except Exception as error:  # whatever an operation that is mapped raises
            _log.info("replicates are mapped anew in every step, which is slower: %s", first_line(error))
            return self.module
        return (lambda *given: graph.program(*given, *graph.constants)) if same else self.module

    @property
    def text(self) -> str:
        """The operations of the graph as text, which is equal for equal graphs."""
        return f"{self.graph.text} mapped over {self.axes}"

    def part(self, rows: slice) -> StackedGraph:
        """This graph for some of the replicates, always mapped over them and never called in a loop.

        TorchInductor 2.13 computes other gradients of convolutions from the loop than from the mapped graph.
        """
        part = copy.copy(self)
        part.module, part._program = self._mapped, None
        part.constants = [c if axis is None else c[rows] for c, axis in zip(self.constants, self.axes, strict=True)]
        part.noise = [noise.some(rows) for noise in self.noise]
        return part

    def shapes(self) -> list[Tensor]:
        """Uninitialised tensors in the shapes of the random inputs, ``[R, ...]`` each."""
        return [noise.empty() for noise in self.noise]

    def draw(self) -> list[Tensor]:
        """Random numbers for one step, ``[R, ...]`` each."""
        return [noise.draw() for noise in self.noise]

    def draw_alone(self, replicate: int) -> list[Tensor]:
        """Random numbers for one step of one replicate, as Pyro would draw them for it."""
        return [noise.draw() for noise in self._alone[replicate]]


def _looped(function: Callable[..., Any], axes: Sequence[int | None]) -> Callable[..., Any]:
    """The function, mapped over the first axes of its inputs by a loop; the axis is None for an input that is not mapped."""

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        rows = [value.unbind(0) if axis == 0 else None for value, axis in zip(given, axes, strict=True)]
        results = [
            function(*(value if own is None else own[r] for value, own in zip(given, rows, strict=True)))
            for r in range(len(given[0]))
        ]
        return tuple(
            column[0][None] if len(column) == 1 else torch.stack(column) for column in zip(*results, strict=True)
        )

    return run


class StackedLoss:
    """The losses of all replicates as one, with a leading axis ``[R, ...]`` on parameters, buffers and results.

    Args:
        losses: one per replicate; their graphs may differ only in tensors.
        leaves: the parameters of all replicates, ``[R, ...]``.
        held: for every replicate, the tensors of model and guide that are not parameters, by name.

    Attributes:
        alive: which replicates had finite losses and gradients at every step, ``[R]``.
        lived: the number of steps that each replicate made, ``[R]``.
    """

    def __init__(self, losses: Sequence[Loss], leaves: Sequence[Tensor], held: Sequence[Mapping[str, Tensor]]) -> None:
        self.first: Recorded = Recorded(losses[0])
        self.leaves: list[Tensor] = list(leaves)
        self.held: Sequence[Mapping[str, Tensor]] = held
        self.buffers: list[Tensor] = [torch.stack(own) for own in zip(*(loss.buffers for loss in losses), strict=True)]
        self.alive: Tensor = torch.ones(len(held), dtype=torch.bool, device=self.leaves[0].device)
        self.lived: Tensor = torch.zeros(len(held), dtype=torch.long, device=self.leaves[0].device)
        self._graphs: dict[Shapes, StackedGraph] = {}

    def refresh(self) -> bool:
        """False: the tensors in `held` do not change during training."""
        return False

    def graph(self, batch: Arguments) -> StackedGraph:
        """The graph for minibatches of this shape."""
        if batch.shapes not in self._graphs:
            one = self.first.graph(batch.at(0))
            if one.read is not None:
                raise Untraceable("it reads whole numbers of its arguments, in which replicates may differ")
            updated = len(self.leaves) + len(self.buffers)
            self._graphs[batch.shapes] = StackedGraph(one, self.held, updated, len(batch.tensors), batch.device)
        return self._graphs[batch.shapes]

    def evaluated(self, batch: Arguments, seeds: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """nll and kl, ``[R, 2]``, and the updated buffers, without a step.

        Args:
            seeds: numbers of replicates; each has the noise that Pyro draws for it alone from its number as seed. The noise
                of the others is 0.

        Raises:
            Untraceable: the loss cannot be recorded; an operation that cannot be mapped raises any error.
        """
        graph = self.graph(batch)
        noise = graph.shapes()
        for place in noise:
            place.zero_()
        for r in seeds:
            with seeded(r, batch.device):
                for place, drawn in zip(noise, graph.draw_alone(r), strict=True):
                    place[r] = drawn
        with torch.no_grad():
            controls = torch.ones(2).to(self.leaves[0])
            inputs = (*self.buffers, *batch.tensors, controls, *graph.constants, *noise)
            terms, *results = graph.module(*self.leaves, *inputs)
        return terms, results[len(self.leaves) :]


def bytes_of_step(loss: Loss, batch: Arguments) -> int:
    """The memory that the gradient of a replicate's step takes; `Untraceable` if it cannot be recorded."""
    return Recorded(loss).graph(batch).bytes


class Stacked(Traced):
    """Replays the mapped graph of all replicates at every step; the optimiser updates the stacked parameters.

    Args:
        loss: the loss of all replicates.
        optimizer: the optimiser of the stacked parameters.
        record: whether to record the mapped graph, which pays off for many steps.
    """

    most_bytes: ClassVar[int] = 2**22

    def __init__(self, loss: StackedLoss, optimizer: torch.optim.Optimizer, *, record: bool = False) -> None:
        super().__init__(loss, optimizer, attrgetter("program" if record else "evaluate"))

    def rows_of(self, batch: Arguments) -> int:
        return batch.at(0).rows

    def apply(self, results: Results, rates: Sequence[float]) -> None:
        loss, leaves = self.loss, self.leaves
        loss.alive &= finite(results.terms, results.gradients)
        loss.lived += loss.alive
        for leaf, gradient in zip(leaves, results.gradients, strict=True):
            leaf.grad = gradient
        all_alive = loss.alive.device.type == "cpu" and bool(loss.alive.all())  # a GPU would have to be waited for
        kept = [] if all_alive else [leaf.detach().clone() for leaf in leaves]
        self.update(rates)
        for leaf, old in zip(leaves, kept, strict=False):
            leaf.copy_(torch.where(over(loss.alive, leaf), leaf, old))
        for buffer, new in zip(loss.buffers, results.buffers, strict=True):
            buffer.copy_(torch.where(over(loss.alive, buffer), new, buffer))


def finite(terms: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Which replicates have finite losses and gradients, ``[R]``."""
    sums = torch.stack([_sum(terms), *map(_sum, gradients)])
    return torch.isfinite(sums).all(0)


def _sum(values: Tensor) -> Tensor:
    """The sum of each replicate's entries, ``[R]``."""
    return values.sum(list(range(1, values.dim()))) if values.dim() > 1 else values


def over(alive: Tensor, values: Tensor) -> Tensor:
    """A mask ``[R]`` in a shape that broadcasts to values ``[R, ...]``."""
    return alive.reshape(-1, *(1,) * (values.dim() - 1))


def _name_of(constant: Tensor, held: Mapping[str, Tensor]) -> str | None:
    """The name in `held` of a tensor with the memory, shape and dtype of this one, or None."""
    for name, value in held.items():
        if value.data_ptr() == constant.data_ptr() and value.shape == constant.shape and value.dtype == constant.dtype:
            return name
    return None
