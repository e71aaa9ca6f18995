"""The compiled step of many independent fits.

On a CPU the program is called for a block of replicates at a time, so that a block's tensors stay in the cache. Replicates
do not depend on each other. So a block of them makes several steps before the next block does, and the rows and noise of
these steps are fetched and drawn at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.compiled.in_blocks import Rows
from pyrodrop.compiled.inductor import Call, Compiled
from pyrodrop.compiled.noise_ahead import spaced
from pyrodrop.compiled.stacked import StackedGraph, StackedLoss, finite, over
from pyrodrop.steps.batch import Arguments

_BLOCK = 64  # replicates per call
_BYTES = 2**22  # of rows and noise of the steps of a block
_STEPS = 16  # of a block


class StackedCompiled(Compiled):
    """Makes the steps of all replicates with one compiled program."""

    # Where rows are short, an operation that is fused into each of its readers is computed again for every few entries, so
    # fewer are fused.
    options: ClassVar[dict[str, Any]] = {"realize_opcount_threshold": 10}

    def __init__(self, loss: StackedLoss, optimizer: torch.optim.Optimizer, looped: bool = False) -> None:
        super().__init__(loss, optimizer)
        self._held += [loss.alive, loss.lived]
        count = len(loss.held)
        size = 1 if looped else count if loss.alive.is_cuda else block_size(count)
        self._rows = [slice(first, first + size) for first in range(0, count, size)]
        self._several: dict[int, _Ahead] = {}
        self._parts = [[held[rows] for held in self._held] for rows in self._rows]

    def prepare(self, batch: Arguments) -> None:
        if batch.shapes not in self._calls:
            graph, first = self.loss.graph(batch), self._rows[0]
            blocks = [graph.part(rows) for rows in self._rows]
            call = self._call(blocks[0], self._parts[0], batch.at(first))
            self._calls[batch.shapes] = blocks, call
            if batch.device.type == "cpu":
                self._several[batch.at(0).rows] = _Ahead(call, self._parts, self._rows, blocks, batch)

    def block(self, batches: Rows, most: int) -> None:
        size, follow = batches.coming()
        ahead = self._several.get(size)
        count = 1 if ahead is None else min(most, follow, ahead.steps)
        first = len(self.made)
        if ahead is None or count == 1:
            self.made.append(self.step(batches.next(), first))
            return
        with torch.no_grad():
            self.made += ahead.run(batches, self._controls[first : first + count]).unbind(0)
        torch.autograd.graph.increment_version(self._held)

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.prepare(batch)
        blocks, call = self._calls[batch.shapes]
        with torch.no_grad():
            terms = [
                call([*held, *batch.at(rows).tensors, self._controls[index], *graph.constants, *graph.draw()])[0]
                for rows, held, graph in zip(self._rows, self._parts, blocks, strict=True)
            ]
        torch.autograd.graph.increment_version(self._held)
        return torch.cat(terms)

    def choice(self, terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        was, lived = extra
        alive = was & finite(terms, gradients)
        was.copy_(alive)
        lived.copy_(lived + alive)
        return lambda old, new: torch.where(over(alive, old), new, old)


def block_size(count: int) -> int:
    """The number of replicates per call: what fits a core's own cache where networks are small, in blocks of equal size so
    that one program serves all of them; all replicates where no such size divides their number."""
    sizes = [size for size in range(_BLOCK, _BLOCK // 4, -1) if count % size == 0]
    return sizes[0] if count > _BLOCK and sizes else count


class _Ahead:
    """The inputs of several consecutive steps of all replicates with minibatches of one shape."""

    def __init__(
        self,
        call: Call,
        parts: Sequence[Sequence[Tensor]],
        rows: Sequence[slice],
        graphs: Sequence[StackedGraph],
        batch: Arguments,
    ) -> None:
        self.call, self.parts, self.rows, self.graphs = call, parts, rows, graphs
        first, self.count = batch.at(rows[0]), rows[-1].stop
        # of a minibatch that is the whole data set
        self.all = [batch.at(of_block).tensors for of_block in rows] if batch.whole else None
        tensors = [] if self.all else first.tensors
        size = sum(tensor.nbytes for tensor in (*tensors, *graphs[0].shapes()))
        self.steps = max(1, min(_STEPS, _BYTES // max(1, size)))
        self.places = [spaced(tensor, self.steps) for tensor in tensors]
        self.noise = [noise.empty(self.steps) for noise in graphs[0].noise]

    def run(self, batches: Rows, controls: Sequence[Tensor]) -> Tensor:
        """Make a step for each of the controls; returns nll and kl of every step, ``[steps, R, 2]``."""
        count = len(controls)
        terms = controls[0].new_empty(count, self.count, 2)
        taken = None if self.all else batches.take(count)
        for number, (held, rows, graph) in enumerate(zip(self.parts, self.rows, self.graphs, strict=True)):
            if taken is not None:
                batches.gather(taken[rows], [place[:count] for place in self.places])
            for noise, place in zip(graph.noise, self.noise, strict=True):
                noise.fill(place[:count])
            for step, control in enumerate(controls):
                data = self.all[number] if self.all else [place[step] for place in self.places]
                drawn = [place[step] for place in self.noise]
                terms[step, rows] = self.call([*held, *data, control, *graph.constants, *drawn])[0]
        return terms
