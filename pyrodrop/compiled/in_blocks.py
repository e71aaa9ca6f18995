"""Several steps at a time on a CPU, with as little work around a step as there can be.

In a step of a small network the arithmetic takes less time than what Python does around it. So rows and noise of several
consecutive steps are fetched and drawn at once, into memory that the steps then read.

They are drawn in the order of single steps. After a block of steps, the random state and the place in the epoch are those of
as many single steps, so whatever looks at the training between two blocks sees no difference.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.noise_ahead import NoiseAhead, spaced
from pyrodrop.compiled.recorded import Graphs
from pyrodrop.steps import Engine, Plan
from pyrodrop.steps.batch import Arguments, Shapes

_BYTES = 2**20  # of rows and noise of a block: what stays in a core's own cache
_STEPS = 100  # of a block


class Rows(Protocol):
    """Minibatches of which several can be taken at once."""

    def next(self) -> Arguments: ...
    def state(self) -> dict[str, Tensor]: ...
    def load(self, state: Mapping[str, Tensor]) -> None: ...

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""

    def take(self, count: int) -> Tensor:
        """The numbers of the rows of the next `count` minibatches, of one size, ``[count * size]``; of replicates,
        ``[R, count * size]``."""

    def gather(self, rows: Tensor, places: Sequence[Tensor]) -> None:
        """Copy rows into tensors ``[count, size, ...]``, of x and y each; of some replicates, ``[count, R, size, ...]``."""


class InBlocks(Engine):
    """Makes the steps of one fit in blocks, with the bits of single steps."""

    def __init__(self, loss: Graphs) -> None:
        self.loss = loss
        self._ahead: dict[int, Ahead] = {}

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        if self.loss.refresh():
            for ahead in self._ahead.values():
                self.look_ahead(ahead.batch)

    @abstractmethod
    def make(self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int) -> Tensor:
        """Make the step of this index from its rows, of these shapes, and its noise; returns nll and kl, ``[2]``."""

    @abstractmethod
    def changed(self) -> list[Tensor]:
        """The tensors that a step writes to, some of them without PyTorch's knowledge."""

    def look_ahead(self, batch: Arguments) -> None:
        """Make minibatches of this shape in blocks from now on, where their rows can be taken together."""
        graph = self.loss.graph(batch)
        if batch.device.type == "cpu" and not graph.draws_itself and all(t.is_contiguous() for t in batch.tensors):
            self._ahead[batch.rows] = Ahead(batch, graph)

    def advance(self, batches: Rows, count: int) -> None:
        end = len(self.made) + count
        while len(self.made) < end:
            self.block(batches, end - len(self.made))

    def block(self, batches: Rows, most: int) -> None:
        """Make at most so many steps at once, at least one."""
        made = self.made
        if batches.coming()[0] not in self._ahead:
            made.append(self.step(batches.next(), len(made)))
            return
        before = batches.state(), torch.get_rng_state()
        steps, first = self._fetched(batches, most), len(made)
        try:
            with torch.no_grad():
                for ahead, place in steps:
                    made.append(self.make(ahead.shapes, ahead.rows[place], ahead.noise[place], len(made)))
        except BaseException:  # also an interruption: what follows must find the state after the steps that were made
            batches.load(before[0])
            torch.set_rng_state(before[1])
            self._fetched(batches, len(made) - first)
            raise
        finally:
            torch.autograd.graph.increment_version(self.changed())

    def _fetched(self, batches: Rows, most: int) -> list[tuple[Ahead, int]]:
        """Fetch rows and noise of the next steps, at most so many, in the order of single steps: where each of them is."""
        steps: list[tuple[Ahead, int]] = []
        used = dict.fromkeys(self._ahead, 0)
        while len(steps) < most:
            size, follow = batches.coming()
            ahead = self._ahead.get(size)
            count = 0 if ahead is None else min(most - len(steps), follow, ahead.steps - used[size])
            if ahead is None or not count:
                break
            places = range(used[size], used[size] + count)
            ahead.draw(batches, slice(places.start, places.stop))
            steps += [(ahead, place) for place in places]
            used[size] += count
        for size, count in used.items():
            self._ahead[size].finish(batches, count)
        return steps


class Ahead:
    """The rows and the noise of several steps with minibatches of one shape.

    Attributes:
        rows, noise: of every step, by reference; `draw`, for each of some steps, and then `finish` write them.
    """

    def __init__(self, batch: Arguments, graph: Graph) -> None:
        self.batch, whole = batch, batch.whole  # the rows are those of every step
        tensors = [] if whole else batch.tensors
        size = sum(tensor.nbytes for tensor in (*tensors, *graph.shapes()))
        self.shapes: Shapes = batch.shapes
        self.steps: int = max(1, min(_STEPS, _BYTES // max(1, size)))
        self._numbers = None if whole else torch.empty(self.steps, batch.rows, dtype=torch.long)
        self._places = [spaced(tensor, self.steps) for tensor in tensors]
        self._noise = NoiseAhead(graph.noise, self.steps)
        taken = [list(rows) for rows in zip(*(place.unbind(0) for place in self._places), strict=True)]
        self.rows = [batch.tensors] * self.steps if whole else taken
        self.noise = self._noise.inputs

    def draw(self, batches: Rows, steps: slice) -> None:
        """Take row numbers and draw random numbers for some of the steps."""
        if self._numbers is not None:
            self._numbers[steps] = batches.take(steps.stop - steps.start).view(-1, self._numbers.shape[1])
        self._noise.draw(steps)

    def finish(self, batches: Rows, count: int) -> None:
        """Make rows and noise of the first `count` steps of what was drawn for them."""
        if count and self._numbers is not None:
            batches.gather(self._numbers[:count].flatten(), [place[:count] for place in self._places])
        if count:
            self._noise.finish(count)
