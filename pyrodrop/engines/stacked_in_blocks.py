"""The compiled step of replicates on a CPU, several steps at a time.

Replicates do not depend on each other. So a block of them makes several steps before the next block does, and the rows and
masks of these steps are fetched and drawn at once. The numbers are those of single steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pyrodrop.distributions.stacked_coins import StackedTosses, words_of
from pyrodrop.engines.compiled import any_number
from pyrodrop.engines.graph import Batch
from pyrodrop.engines.native import NATIVE, Call, bare_call
from pyrodrop.engines.noise_ahead import spaced
from pyrodrop.engines.random_words import RandomWords
from pyrodrop.engines.stacked import StackedCompiled, StackedGraph, StackedLoss
from pyrodrop.engines.untraceable import Untraceable

_log = logging.getLogger("pyrodrop")

_BYTES = 2**22  # of rows and masks of the steps of a block
_STEPS = 16  # of a block


class StackedRows(Protocol):
    """Minibatches of replicates of which several can be taken at once."""

    def next(self) -> Batch: ...

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""

    def take(self, count: int) -> Tensor:
        """The numbers of the rows of the next `count` minibatches, of one size, ``[R, count * size]``."""

    def gather(self, rows: Tensor, places: Sequence[Tensor], count: int) -> None:
        """Copy rows ``[R, count * size]`` into ``[>= count, R, size, ...]``, one of x and y each."""


class StackedInBlocks(StackedCompiled):
    """Makes the steps of all replicates, several per call of `advance` or one per call of `step`, with the same bits."""

    native: ClassVar[dict[str, Any]] = {**StackedCompiled.options, **NATIVE}

    def __init__(self, loss: StackedLoss, optimizer: torch.optim.Optimizer, looped: bool = False) -> None:
        super().__init__(loss, optimizer, looped)
        self._ahead: dict[int, _Ahead] = {}

    def advance(self, batches: StackedRows, index: int, most: int, made: list[Tensor]) -> None:
        size, follow = batches.coming()
        ahead = self._ahead.get(size)
        count = 1 if ahead is None else min(most, follow, ahead.steps)
        if ahead is None or count == 1:
            made.append(self.step(batches.next(), index))
            return
        with torch.no_grad():
            made += ahead.run(batches, self._controls[index : index + count]).unbind(0)
        torch.autograd.graph.increment_version(self._held)

    def _program(self, batch: Batch) -> tuple[Any, Callable[..., Any]]:
        usual = self.options
        try:
            self.options = self.native if self.loss.precision is None else usual  # type: ignore[misc]
            graph, program = super()._program(batch)
        except Untraceable as error:
            _log.info("the compiled step is called from Python, which is slower: as a C++ function, %s", error)
            self.options = usual  # type: ignore[misc]
            graph, program = super()._program(batch)
        blocks, rows = self._blocks[batch.shapes], self._rows
        if len({len(graph.generators) for graph in blocks}) == 1:
            noise = [torch.full_like(n, any_number(n)) for n in blocks[0].shapes()]
            controls = torch.ones(2 + sum(rule.numbers for rule in self.rules)).to(self._held[0])
            rest = [*batch.at(rows[0]).tensors, controls, *blocks[0].constants, *noise]
            call = bare_call(program, self._parts[0], rest)  # type: ignore[arg-type]
            self._ahead[batch.y.shape[1]] = _Ahead(call, self._parts, rows, blocks, batch)
        return graph, program


class _Ahead:
    """The inputs of several consecutive steps of all replicates with minibatches of one shape.

    Args:
        call: makes a step of a block of replicates.
        parts: what the steps of every block update.
        rows: the replicates of every block.
        graphs: of every block.
        batch: one minibatch of all replicates.
    """

    def __init__(
        self,
        call: Call,
        parts: Sequence[Sequence[Tensor]],
        rows: Sequence[slice],
        graphs: Sequence[StackedGraph],
        batch: Batch,
    ) -> None:
        self.call, self.parts, self.rows, self.graphs = call, parts, rows, graphs
        first, self.count = batch.at(rows[0]), len(batch.y)
        self.all = (
            None if batch.kwargs else [batch.at(own).tensors for own in rows]
        )  # a minibatch is the whole data set
        tensors = [] if self.all else first.tensors
        masks = graphs[0].shapes() if _only_masks(graphs[0]) else []
        size = sum(tensor.nbytes for tensor in (*tensors, *masks))
        self.steps = max(1, min(_STEPS, _BYTES // max(1, size)))
        self.places = [spaced(tensor, self.steps) for tensor in tensors]
        self.masks = [spaced(mask, self.steps) for mask in masks]
        shapes = [noises[0].shape for noises in graphs[0].inputs]
        words = RandomWords(len(graphs[0].generators), self.steps * words_of(shapes) if masks else 0)
        self.tosses = [
            StackedTosses(
                [[noise.like for noise in noises] for noises in graph.inputs],
                shapes,
                graph.generators,
                self.masks,
                words.bits,
                words.fill,
            )
            for graph in graphs
            if masks
        ]

    def run(self, batches: StackedRows, controls: Sequence[Tensor]) -> Tensor:
        """Make a step for each of the controls; returns nll and kl of every step, ``[steps, R, 2]``."""
        count = len(controls)
        terms = controls[0].new_empty(count, self.count, 2)
        taken = None if self.all else batches.take(count)
        for number, (held, rows, graph) in enumerate(zip(self.parts, self.rows, self.graphs, strict=True)):
            if taken is not None:
                batches.gather(taken[rows], self.places, count)
            if self.tosses:
                self.tosses[number].draw(count)
            for step, control in enumerate(controls):
                data = self.all[number] if self.all else [place[step] for place in self.places]
                noise = [mask[step] for mask in self.masks] if self.tosses else graph.draw()
                terms[step, rows] = self.call([*held, *data, control, *graph.constants, *noise])[0]
        return terms


def _only_masks(graph: StackedGraph) -> bool:
    """Whether all random inputs of a step are masks, which may be drawn for several steps at once."""
    return bool(graph.inputs) and all(noises[0].kind == "coins" for noises in graph.inputs)
