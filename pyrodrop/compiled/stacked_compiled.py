"""The compiled step of many independent fits.

On a CPU the program is called for a group of replicates at a time, so that a group's tensors stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.compiled.inductor import Compiled
from pyrodrop.compiled.stacked import StackedGraph, StackedLoss, finite, over
from pyrodrop.steps import Arguments

_GROUP = 64  # replicates per call


class StackedCompiled(Compiled):
    """Makes the steps of all replicates with one compiled program.

    Args:
        looped: whether the program is called for each replicate separately.
    """

    # With short rows, an operation that is fused into each of its readers is computed again for every few entries, so fewer
    # operations are fused.
    options: ClassVar[dict[str, Any]] = {"realize_opcount_threshold": 10}
    most_bytes: ClassVar[int] = 2**22
    most_steps: ClassVar[int] = 16

    def __init__(self, loss: StackedLoss, optimizer: torch.optim.Optimizer, *, looped: bool = False) -> None:
        super().__init__(loss, optimizer)
        self._held += [loss.alive, loss.lived]
        count = len(loss.held)
        size = 1 if looped else count if loss.alive.is_cuda else group_size(count)
        self.replicates: list[slice] = [slice(first, first + size) for first in range(0, count, size)]
        self._held_by = [[tensor[group] for tensor in self._held] for group in self.replicates]

    def graphs(self, batch: Arguments) -> Sequence[StackedGraph]:
        graph = self.loss.graph(batch)
        return [graph.part(group) for group in self.replicates]

    def choice(self, terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        was, lived = extra
        alive = was & finite(terms, gradients)
        was.copy_(alive)
        lived.copy_(lived + alive)
        return lambda old, new: torch.where(over(alive, old), new, old)


def group_size(count: int) -> int:
    """The number of replicates per call: of more than 64, the largest divisor from 17 to 64, so that small networks fit a
    core's cache and one program serves groups of equal size; all replicates if there is no such divisor."""
    sizes = [size for size in range(_GROUP, _GROUP // 4, -1) if count % size == 0]
    return sizes[0] if count > _GROUP and sizes else count
