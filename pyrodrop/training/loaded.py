"""Minibatches of data that are read while training, by the numbers of their rows or from a loader."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.data.random_streams import mixed
from pyrodrop.data.rows import Rows
from pyrodrop.data.streamed import Check
from pyrodrop.engines import Batch
from pyrodrop.inputs import mapped
from pyrodrop.training.minibatches import Minibatches, usable


class ReadMinibatches(Minibatches):
    """Minibatches of rows that are read when they are needed, in the order in which `Minibatches` has those in memory.

    Args:
        check: raises a ValueError for observations that the likelihood does not allow.
    """

    def __init__(self, data: Rows, size: int | None, device: torch.device, check: Check | None) -> None:
        self.data: Rows = data
        self.device: torch.device = device
        self._check = check
        self._begin(len(data), size, device)

    def next(self) -> Batch:
        return self.rows(self.take(1))

    def coming(self) -> tuple[int, int]:
        """No minibatch is read together with others."""
        return 0, sys.maxsize

    def _first(self, count: int) -> Batch:
        return self.rows(torch.arange(count))

    def rows(self, rows: Tensor | slice) -> Batch:
        numbers = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return _batch(self.data.read(numbers, self._check), self.num_rows, self.device)


class LoadedMinibatches:
    """Minibatches of a loader, which is iterated once per epoch.

    A place in training is a number of minibatches of an epoch. To go there, the epoch is iterated from its start, and the
    last of the minibatches that are passed over must be the one that was seen before.

    Args:
        seed: of the training; with the number of an epoch that of its random numbers.
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
        self._epoch, self._seen, self.position = 0, 0, 0
        self._under_way: list[Iterator[Dataset]] = []  # the epoch, where one was begun
        # Of an iterator in a cycle of references, PyTorch waits five seconds for each worker.
        weakref.finalize(self, self._under_way.clear)
        self._latest: Dataset | None = None

    @property
    def order(self) -> Tensor:
        """The number of the epoch, and a digest of the last minibatch."""
        if self._latest is not None:
            self._seen, self._latest = mixed(self._latest.fingerprint), None
        return torch.tensor([self._epoch, self._seen])

    @order.setter
    def order(self, order: Tensor) -> None:
        self._epoch, self._seen = order.tolist() if len(order) else (0, 0)
        self._under_way.clear()
        self._latest = None

    def first(self) -> Batch:
        """A minibatch which is not one of the training's."""
        return _batch(self.data.sample, self.num_rows, self.device)

    def samples(self, steps: int | None) -> list[Batch]:
        """A minibatch of the loader's size, and one of the rows that it leaves for the last of an epoch."""
        rest = self.num_rows - (self.per_epoch - 1) * self.size
        last = (
            [self.data.sample.first(rest)]
            if 0 < rest < self.size and (steps is None or steps >= self.per_epoch)
            else []
        )
        return [_batch(rows, self.num_rows, self.device) for rows in (self.data.sample, *last)]

    def next(self) -> Batch:
        """The next minibatch of the epoch, or the first of the next one.

        Raises:
            ValueError: the loader does not repeat the minibatches that it had in this epoch.
        """
        if self.position == self.per_epoch:
            self._epoch, self.position = self._epoch + 1, 0
            self._under_way.clear()
        if not self._under_way:
            self._under_way.append(self._continued())
        self._latest = next(self._under_way[0])
        self.position += 1
        return _batch(self._latest, self.num_rows, self.device)

    def coming(self) -> tuple[int, int]:
        """No minibatch is read together with others."""
        return 0, sys.maxsize

    def check_place(self, order: Tensor, position: int, name: str) -> None:
        """Raise a ValueError unless these are an epoch and the number of its minibatches."""
        numbers = order.tolist() if order.dtype == torch.long and order.shape in ((2,), (0,)) else [-1]
        if min(numbers, default=0) < 0 or not 0 <= position <= self.per_epoch:
            raise ValueError(
                f"{name} must be at a place in an epoch of {self.per_epoch} minibatches of a loader; got minibatch "
                f"{position} and {list(order.shape)} numbers of {order.dtype}"
            )

    def last(self, order: Tensor, position: int) -> str:
        """The minibatch before a place in an epoch, as a sentence."""
        return f"Its minibatch is number {position - 1} of epoch {int(order[0])} of {self.data.source}."

    def _continued(self) -> Iterator[Dataset]:
        """The epoch from the present place on."""
        _ = self.order  # the digest of the last minibatch
        given = self.data.epoch(self._epoch, self.seed, self._check)
        for place in range(self.position):
            passed = next(given)
            if place + 1 == self.position and self._seen and mixed(passed.fingerprint) != self._seen:
                raise ValueError(
                    f"{self.data.source} yields another minibatch {place} of epoch {self._epoch} than before, so the "
                    "training cannot go on where it was: what it draws must depend on torch's, Python's and NumPy's global "
                    "generators or on set_epoch(epoch)"
                )
        return given


def _batch(rows: Dataset, num_data: int, device: torch.device) -> Batch:
    """Rows as arguments of model and guide; contiguous, since a compiled step accepts no other strides."""

    def usual(part: Tensor) -> Tensor:
        return usable(part.to(device, non_blocking=True), device).contiguous()

    return Batch(mapped(usual, rows.x), usual(rows.y), {"num_data": num_data})
