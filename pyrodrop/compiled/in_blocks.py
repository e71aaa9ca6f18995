"""Several steps at a time on a CPU, with little overhead per step.

In a step of a small network, the arithmetic takes less time than the Python code around it. So rows and noise of several
consecutive steps are fetched and drawn at once, into memory that the steps then read.

For one fit, random numbers are drawn in the order of single steps. After a block of steps, the random state and the position
in the epoch are those after as many single steps, so code that runs between two blocks sees no difference. A block that is
interrupted has taken the rows and the noise of all its steps.

Replicates do not depend on each other. So a group of replicates, whose data stay in the cache, makes all steps of a block
before the next group does. The noise of a group is drawn before its steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pyrodrop.compiled.noise import Noise
from pyrodrop.compiled.recorded import Graphs
from pyrodrop.distributions.coins import Masks
from pyrodrop.steps import Arguments, Engine, Plan, Shapes

_LINE = 64  # bytes: PyTorch's alignment of tensors, on which the rounding of matrix products may depend


class Rows(Protocol):
    """Minibatches of which several can be taken at once."""

    def next(self) -> Arguments: ...

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""

    def take(self, count: int) -> Tensor:
        """The row numbers of the next `count` minibatches, all of one size, ``[count * size]``; for replicates,
        ``[R, count * size]``."""

    def gather(self, rows: Tensor, places: Sequence[Tensor]) -> None:
        """Copy rows of x and y into tensors ``[count, size, ...]``; for some replicates, ``[count, R, size, ...]``."""


class InBlocks(Engine):
    """Makes the steps of one fit, or of groups of replicates, in blocks.

    Attributes:
        most_bytes: the largest size of the rows and noise of a block, for one group and one shape of minibatches.
        most_steps: the largest number of steps of a block, for one shape of minibatches.
        replicates: the replicates of every group; None for one fit.
    """

    most_bytes: ClassVar[int] = 2**20  # fits a core's cache
    most_steps: ClassVar[int] = 100
    replicates: Sequence[slice] | None = None

    def __init__(self, loss: Graphs) -> None:
        self.loss = loss
        self._ahead: dict[int, Ahead] = {}  # by the size of the minibatches

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        if self.loss.refresh():
            for batch in self.seen():
                self.look_ahead(batch, [self.loss.graph(batch)])

    def seen(self) -> list[Arguments]:
        """A minibatch of every shape for which steps are made in blocks."""
        return [ahead.batch for ahead in self._ahead.values()]

    @abstractmethod
    def make(
        self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int, group: int = 0
    ) -> Tensor:
        """Make step `index` of a group.

        Args:
            shapes: shapes of the minibatch, which select the graph.
            rows: tensors of the group's minibatch.

        Returns:
            nll and kl, ``[2]``; for a group of replicates, ``[..., 2]``.
        """

    def changed(self) -> list[Tensor]:
        """The tensors that a step writes to without PyTorch's knowledge."""
        return []

    def of_groups(self, batch: Arguments) -> list[Arguments]:
        """The minibatch of every group."""
        return [batch] if self.replicates is None else [batch.at(group) for group in self.replicates]

    def rows_of(self, batch: Arguments) -> int:
        """The size of the minibatch of one replicate."""
        return batch.rows if self.replicates is None else batch.at(0).rows

    def look_ahead(self, batch: Arguments, graphs: Sequence[Any]) -> None:
        """Make steps with minibatches of this shape in blocks from now on, if that is possible.

        Args:
            graphs: the graph of every group.
        """
        if batch.device.type != "cpu" or graphs[0].draws_itself or not all(t.is_contiguous() for t in batch.tensors):
            return
        batches = self.of_groups(batch)
        needed = [] if batch.whole else batches[0].tensors
        size = sum(tensor.nbytes for tensor in (*needed, *graphs[0].shapes()))
        steps = min(self.most_steps, self.most_bytes // max(1, size))
        if steps > 1:
            noises = [graph.noise for graph in graphs]
            self._ahead[self.rows_of(batch)] = Ahead(batch, batches, noises, steps, self.replicates)

    def advance(self, batches: Rows, count: int) -> None:
        end = len(self.made) + count
        while len(self.made) < end:
            self.block(batches, end - len(self.made))

    def block(self, batches: Rows, most: int) -> None:
        """Make at least one step and at most `most` steps at once."""
        if batches.coming()[0] not in self._ahead:
            self.made.append(self.step(batches.next(), len(self.made)))
            return
        try:
            with torch.no_grad():
                self._make(batches, self._take(batches, most))
        finally:
            torch.autograd.graph.increment_version(self.changed())

    def _take(self, batches: Rows, most: int) -> list[tuple[Ahead, int]]:
        """Take rows and random numbers for at most `most` steps, in the order of single steps. Returns their places."""
        steps: list[tuple[Ahead, int]] = []
        for memory in self._ahead.values():
            memory.clear()
        while len(steps) < most and (self.replicates is None or not steps):
            size, follow = batches.coming()
            ahead = self._ahead.get(size)
            if ahead is None or ahead.used == ahead.steps:
                break
            places = range(ahead.used, min(ahead.used + min(most - len(steps), follow), ahead.steps))
            ahead.take(batches, len(places))
            steps += [(ahead, place) for place in places]
        return steps

    def _make(self, batches: Rows, steps: Sequence[tuple[Ahead, int]]) -> None:
        """Make steps whose rows were taken: all of them with the first group, then with the next."""
        first, groups = len(self.made), self.replicates or [slice(None)]
        terms: list[list[Tensor]] = [[] for _ in steps]
        for group in range(len(groups)):
            for ahead in self._ahead.values():
                ahead.fill(batches, group)
            for index, (ahead, place) in enumerate(steps):
                made = self.make(ahead.shapes, ahead.rows[group][place], ahead.noise[place], first + index, group)
                terms[index].append(made)
                if group == len(groups) - 1:
                    self.made.append(made if len(groups) == 1 else torch.cat(terms[index]))


class Ahead:
    """Rows and noise of several steps with minibatches of one shape, in the same memory for every block and group.

    Args:
        batch: a minibatch of this shape.
        batches: the part of `batch` for every group.
        noises: the random inputs of every group.
        steps: the number of steps to allocate memory for.
        groups: `InBlocks.replicates`.

    Attributes:
        rows: the tensors of a minibatch, by group and step; `fill` writes those of a group.
        noise: the random inputs, by step; `fill` writes those of a group.
        used: the number of steps whose rows were taken.
    """

    def __init__(
        self,
        batch: Arguments,
        batches: Sequence[Arguments],
        noises: Sequence[Sequence[Noise]],
        steps: int,
        groups: Sequence[slice] | None,
    ) -> None:
        self.batch, self.shapes, self.steps, self.used = batch, batch.shapes, steps, 0
        self._groups = groups
        self._taken: list[Tensor] = []
        self._places = [] if batch.whole else [spaced(tensor, steps) for tensor in batches[0].tensors]
        self.rows: list[list[Any]]
        if batch.whole:  # every step has these
            self.rows = [[of_group.tensors] * steps for of_group in batches]
        else:
            self.rows = [_by_step(self._places, steps)] * len(batches)
        self._noise = InOrder(noises[0], steps) if groups is None else OfReplicates(noises, steps)
        self.noise = self._noise.inputs

    def clear(self) -> None:
        """Begin another block."""
        self.used = 0
        self._taken.clear()

    def take(self, batches: Rows, count: int) -> None:
        """Take row numbers and draw random numbers for the next steps."""
        if self._places:
            self._taken.append(batches.take(count))
        self._noise.draw(slice(self.used, self.used + count))
        self.used += count

    def fill(self, batches: Rows, group: int) -> None:
        """Write rows and noise of a group for all steps that were taken."""
        if self._taken:
            rows = torch.cat(self._taken, -1) if len(self._taken) > 1 else self._taken[0]
            rows = rows if self._groups is None else rows[self._groups[group]]
            batches.gather(rows, [place[: self.used] for place in self._places])
        if self.used:
            self._noise.finish(self.used, group)


class InOrder:
    """Draws the random inputs of up to `steps` steps of one fit from torch's default CPU generator, as single steps do.

    If all random inputs are masks, they are drawn for several steps at once: a step takes whole random words for each mask.

    Attributes:
        inputs: the random inputs of every step, by reference; `draw` and then `finish` fill them.
    """

    def __init__(self, noises: Sequence[Noise], steps: int) -> None:
        self._noises = noises
        self._masks: Masks | None = None
        if noises and all(noise.kind == "coins" for noise in noises):
            self._masks = Masks([noise.like for noise in noises], [noise.shape for noise in noises], steps)
        places = [spaced(noise.empty(), steps) for noise in noises] if self._masks is None else self._masks.masks
        self.inputs = _by_step(places, steps)

    def draw(self, steps: slice) -> None:
        """Draw for some of the steps."""
        if self._masks is not None:
            self._masks.draw(steps)
            return
        for places in self.inputs[steps]:
            for noise, place in zip(self._noises, places, strict=True):
                noise.fill(place)

    def finish(self, count: int, group: int) -> None:
        """Make the masks of the first `count` steps from their random bits."""
        if self._masks is not None:
            self._masks.compare(count)


class OfReplicates:
    """Draws the random inputs of up to `steps` steps of a group of replicates, all steps of an input at once.

    Args:
        noises: the random inputs of every group.
    """

    def __init__(self, noises: Sequence[Sequence[Noise]], steps: int) -> None:
        self._noises, self._places = noises, [noise.empty(steps) for noise in noises[0]]
        self.inputs = _by_step(self._places, steps)

    def draw(self, steps: slice) -> None:
        """Nothing: random numbers are drawn group by group."""

    def finish(self, count: int, group: int) -> None:
        """Draw for the first `count` steps of a group."""
        for noise, place in zip(self._noises[group], self._places, strict=True):
            noise.fill(place[:count])


def _by_step(places: Sequence[Tensor], steps: int) -> list[tuple[Tensor, ...]]:
    """The tensors of every step, from tensors ``[steps, ...]``."""
    return list(zip(*(place.unbind(0) for place in places), strict=True)) if places else [()] * steps


def spaced(like: Tensor, steps: int) -> Tensor:
    """Uninitialised memory for one contiguous tensor per step, ``[steps, ...]``, each aligned like a separate tensor."""
    unit = max(1, _LINE // like.element_size())
    memory = like.new_empty(steps, -(-like.numel() // unit) * unit)
    return memory[:, : like.numel()].unflatten(1, like.shape) if like.dim() else memory[:, 0]
