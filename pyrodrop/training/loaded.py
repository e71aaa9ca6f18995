"""Minibatches of a loader, such as a DataLoader, and rows as arguments of model and guide."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.data.streamed import Check
from pyrodrop.inputs import mapped
from pyrodrop.steps import Batch


class LoadedMinibatches:
    """Minibatches of a loader, which is iterated once per epoch.

    A training that continues begins the interrupted epoch again.

    Args:
        seed: of the training; together with the number of an epoch it seeds the loader's random numbers.
        check: raises a ValueError for observations that the likelihood does not allow.

    Attributes:
        position: number of minibatches of the epoch that were taken.
    """

    def __init__(self, data: Loader, seed: int, device: torch.device, check: Check | None) -> None:
        self.data: Loader = data
        self.seed: int = seed
        self.device: torch.device = device
        self._check = check
        self.size: int = len(data.sample)
        self.num_rows: int = len(data)
        self.per_epoch: int = data.per_epoch
        self._epoch, self.position = 0, 0
        self._under_way: list[Iterator[Dataset]] = []  # the epoch, where one was begun
        # PyTorch waits five seconds for each worker of an iterator that is freed in a cycle of references.
        weakref.finalize(self, self._under_way.clear)

    def first(self) -> Batch:
        """A sample minibatch, which is not part of the training order."""
        return batch_of(self.data.sample, self.num_rows, self.device)

    def samples(self, steps: int | None) -> list[Batch]:
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
        if self.position == self.per_epoch:
            self._epoch, self.position = self._epoch + 1, 0
            self._under_way.clear()
        if not self._under_way:
            self._under_way.append(self.data.epoch(self._epoch, self.seed, self._check))
        rows = next(self._under_way[0])
        self.position += 1
        return batch_of(rows, self.num_rows, self.device)

    def coming(self) -> tuple[int, int]:
        """No minibatch is read together with others."""
        return 0, sys.maxsize

    def state(self) -> dict[str, Tensor]:
        """The number of the epoch under way, or of the one that begins next."""
        return {"epoch": torch.tensor(self._epoch + (self.position == self.per_epoch))}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Go to the beginning of the epoch of a place that `state` has returned."""
        epoch = state["epoch"].flatten().tolist()
        if len(epoch) != 1 or not isinstance(epoch[0], int) or epoch[0] < 0:
            raise ValueError(f"{name} must have the number of an epoch of a loader; it is damaged")
        self._epoch, self.position = epoch[0], 0
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
