"""Minibatches of a loader, such as a DataLoader, and rows as arguments of model and guide."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.data.loader import Check, Loader
from pyrodrop.inputs import mapped
from pyrodrop.steps import Arguments, Batch


class LoadedMinibatches:
    """Minibatches of a loader, which is iterated once per epoch. A training that continues begins its epoch again.

    Args:
        check: raises a ValueError for observations that the likelihood does not allow.
    """

    def __init__(self, data: Loader, device: torch.device, check: Check | None) -> None:
        self.data: Loader = data
        self.device: torch.device = device
        self._check = check
        self.size: int = len(data.sample)
        self.num_rows: int = len(data)
        self.per_epoch: int = data.per_epoch
        self._under_way: list[Iterator[Dataset]] = []  # the epoch, where one was begun
        # PyTorch waits five seconds for each worker of an iterator that is freed in a cycle of references.
        weakref.finalize(self, self._under_way.clear)

    def first(self) -> Batch:
        """A sample minibatch, which is not part of the training order."""
        return batch_of(self.data.sample, self.num_rows, self.device)

    def samples(self, steps: int | None) -> list[Arguments]:
        """A minibatch of the loader's size, and one of the size of an epoch's last if that is smaller and is reached."""
        rest = self.num_rows - (self.per_epoch - 1) * self.size
        last = (
            [self.data.sample.first(rest)]
            if 0 < rest < self.size and (steps is None or steps >= self.per_epoch)
            else []
        )
        return [batch_of(rows, self.num_rows, self.device) for rows in (self.data.sample, *last)]

    def next(self) -> Batch:
        """The next minibatch of the epoch, or the first of the next one."""
        rows = next(self._under_way[0], None) if self._under_way else None
        if rows is None:
            self._under_way[:] = [self.data.epoch(self._check)]
            rows = next(self._under_way[0])
        return batch_of(rows, self.num_rows, self.device)

    def coming(self) -> tuple[int, int]:
        """Minibatches are read one at a time."""
        return 0, sys.maxsize

    def state(self) -> dict[str, Tensor]:
        """The state is empty: an epoch is begun again."""
        return {}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Go to the beginning of an epoch."""
        self._under_way.clear()


def batch_of(rows: Dataset, num_data: int, device: torch.device) -> Batch:
    """Rows as arguments of model and guide; contiguous, since a compiled step accepts no other strides."""

    def moved(tensor: Tensor) -> Tensor:
        return recordable(tensor.to(device, non_blocking=True), device).contiguous()

    return Batch(mapped(moved, rows.x), moved(rows.y), {"num_data": num_data})


def recordable(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device, as a tensor that autograd can record, unlike one of `torch.inference_mode`."""
    values = values.to(device)
    return values.clone() if values.is_inference() else values
