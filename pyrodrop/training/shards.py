"""Minibatches that are dealt to processes and cut into parts.

Every process knows the order of the rows of an epoch and takes its own share of each minibatch: consecutive rows, whose
numbers differ between processes by at most 1. It cuts them into parts, whose sizes differ by at most 1 as well. Where a
small last minibatch of an epoch has no row for a process, that process evaluates the first one with weight 0.

    gradient of the step  =  sum over all parts of  weight * gradient of the loss of the part's rows

where the loss is scaled to the data set, and the weight is the part's share of the rows of the minibatch. So the gradient is
unbiased, and the KL divergence counts once. Every part draws noise of its own, and updates buffers, such as running
statistics, in its turn; of several ranks the mean is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.steps import Batch, Loss
from pyrodrop.training.minibatches import Minibatches, Ordered
from pyrodrop.training.ranks import Ranks, alone

Gradients = Callable[[Batch, Tensor], tuple[Tensor, list[Tensor], list[Tensor]]]


class Part(NamedTuple):
    """Some rows of the minibatch of a step.

    Attributes:
        batch: the rows; its ``num_data`` is the size of the whole data set.
        weight: of its gradient, of which the mean over all ranks is taken.
    """

    batch: Batch
    weight: float


class Joint(NamedTuple):
    """The minibatch of a step, as far as this process evaluates it: at least one part."""

    parts: list[Part]

    @property
    def rows(self) -> int:
        """Number of rows that this process evaluates."""
        return sum(part.batch.rows for part in self.parts)


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


def backward(loss: Loss, ranks: Ranks, joint: Joint, factors: Any, gradients: Gradients | None = None) -> Tensor:
    """Give the parameters the gradient of a minibatch, by that of its parts; returns nll and kl, ``[2]``.

    Args:
        factors: of nll and of the weights' KL divergence.
        gradients: see `pyrodrop.steps.Loss.gradients`, which is the default.
    """
    leaves = loss.leaves
    scales = torch.tensor(factors, dtype=torch.float64).to(leaves[0])
    total: Tensor | float = 0.0
    for part in joint.parts:
        terms, grads, moved = (gradients or loss.gradients)(part.batch, scales)
        total = total + part.weight * torch.cat([value.reshape(-1) for value in (terms, *grads)])
        loss.moving.take(moved)
    assert isinstance(total, Tensor)
    if ranks.size > 1:
        total = _averaged(total, loss, ranks)
    terms, *grads = total.split([2, *(leaf.numel() for leaf in leaves)])
    for leaf, gradient in zip(leaves, grads, strict=True):
        leaf.grad = gradient.view_as(leaf).to(leaf.dtype)
    return terms


def _averaged(total: Tensor, loss: Loss, ranks: Ranks) -> Tensor:
    """The mean over ranks; buffers get that of their floating-point values."""
    buffers = [buffer for buffer in loss.buffers if buffer.is_floating_point()]
    flat = torch.cat([total, *(buffer.reshape(-1) for buffer in buffers)])
    ranks.mean(flat)
    total, *means = flat.split([len(total), *(buffer.numel() for buffer in buffers)])
    for buffer, mean in zip(buffers, means, strict=True):
        buffer.copy_(mean.view_as(buffer))
    return total


def _shares(count: int, among: int) -> list[tuple[int, int]]:
    """First and number of consecutive things for each of some receivers, whose numbers differ by at most 1."""
    least, more = divmod(count, among)
    sizes = [least + (number < more) for number in range(among)]
    return [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
