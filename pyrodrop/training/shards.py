"""Minibatches that are dealt to processes and cut into parts.

Every process knows the order of the rows of an epoch and takes its own share of each minibatch: consecutive rows, whose
numbers differ between processes by at most 1. It cuts them into parts, whose sizes differ by at most 1 as well. Where a
small last minibatch of an epoch has no row for a process, that process evaluates the first one with weight 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.compiled import Batch, Joint, Part
from pyrodrop.training.minibatches import Minibatches, Ordered
from pyrodrop.training.ranks import Ranks, alone


class Shards(Ordered):
    """The minibatches of a data set, as far as one process evaluates them, in parts.

    Args:
        batches: of one process; their size is that of all processes together.
        parts: number of parts that the share of a process is cut into; fewer where it has fewer rows.
        ranks: that share the minibatches; their rank 0 draws the order of the rows.
    """

    def __init__(
        self,
        batches: Minibatches,
        *,
        parts: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        self.batches: Minibatches = batches
        self.parts: int = parts
        self.ranks: Ranks = ranks or alone(batches.order.device)
        self.size, self.num_rows = batches.size, batches.num_rows
        self.order, self.position = batches.order, 0

    def first(self) -> Joint:
        """The first rows, which are not a minibatch of the training's."""
        return self._joint(None, self.size)

    def samples(self, steps: int | None) -> list[Joint]:
        """Minibatches with a part of each shape that so many steps use, of any number of steps if None."""
        rest = self.num_rows % self.size
        reached = steps is None or steps >= -(-(len(self.order) - self.position or self.num_rows) // self.size)
        return [self.first(), *([self._joint(None, rest)] if rest and reached else [])]

    def shapes(self, steps: int | None) -> list[Batch]:
        """One part of each shape that `samples` have."""
        parts = [part.batch for joint in self.samples(steps) for part in joint.parts]
        return list({batch.shapes: batch for batch in reversed(parts)}.values())[::-1]

    def next(self) -> Joint:
        """The parts of the next minibatch; the last of an epoch may be smaller."""
        if self.size == self.num_rows:
            return self.first()
        if self.position >= len(self.order):
            order = torch.randperm(self.num_rows, device=self.order.device)
            self.order, self.position = self.ranks.of_first(order.cpu()).to(order.device), 0
        rows = self.order[self.position : self.position + self.size]
        self.position += self.size
        return self._joint(rows, len(rows))

    def _joint(self, rows: Tensor | None, total: int) -> Joint:
        """This process's parts of a minibatch of `total` rows of the data: of these, or of the first ones if None."""
        first, count = _shares(total, self.ranks.size)[self.ranks.rank]
        cut = _shares(max(count, 1), min(self.parts, max(count, 1)))
        if not count:  # the first row of the minibatch, which counts for nothing
            first = 0
        of_row = self.ranks.size / total if count else 0.0
        return Joint([Part(self._rows(rows, first + at, size), of_row * size) for at, size in cut])

    def _rows(self, rows: Tensor | None, first: int, size: int) -> Batch:
        shard = slice(first, first + size)
        return self.batches.rows(shard if rows is None else rows[shard])


def _shares(count: int, among: int) -> list[tuple[int, int]]:
    """First and number of consecutive things for each of some receivers, whose numbers differ by at most 1."""
    least, more = divmod(count, among)
    sizes = [least + (number < more) for number in range(among)]
    return [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
