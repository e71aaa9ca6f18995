"""Minibatches of data that are read while training, by the numbers of their rows or from a loader."""

from __future__ import annotations

import copy
import json
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.data.rows import Rows
from pyrodrop.data.streamed import Check
from pyrodrop.inputs import mapped
from pyrodrop.steps import Batch
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

    A training that continues begins the epoch again in which it was interrupted. Only a loader that knows where it is, by
    ``state_dict`` and ``load_state_dict`` as torchdata's StatefulDataLoader, goes on within it.

    Args:
        seed: of the training; with the number of an epoch that of its random numbers.
        check: raises a ValueError for observations that the likelihood does not allow.

    Attributes:
        position: number of minibatches of the epoch that were taken.
    """

    def __init__(self, data: Loader, seed: int, device: torch.device, check: Check | None) -> None:
        self.data: Loader = copy.copy(data)
        self._knows_its_place = all(hasattr(data.batches, name) for name in ("state_dict", "load_state_dict"))
        if self._knows_its_place:
            self.data.batches = copy.copy(data.batches)  # whose place is not moved by estimates
        self.seed: int = seed
        self.device: torch.device = device
        self._check = check
        self.size: int = len(data.sample)
        self.num_rows: int = len(data)
        self.per_epoch: int = data.per_epoch
        self._epoch, self.position = 0, 0
        self._under_way: list[Iterator[Dataset]] = []  # the epoch, where one was begun
        # Of an iterator in a cycle of references, PyTorch waits five seconds for each worker.
        weakref.finalize(self, self._under_way.clear)

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
        """The next minibatch of the epoch, or the first of the next one."""
        if self.position == self.per_epoch:
            self._epoch, self.position = self._epoch + 1, 0
            self._under_way.clear()
        if not self._under_way:
            self._under_way.append(self.data.epoch(self._epoch, self.seed, self._check, self.position))
        rows = next(self._under_way[0])
        self.position += 1
        return _batch(rows, self.num_rows, self.device)

    def coming(self) -> tuple[int, int]:
        """No minibatch is read together with others."""
        return 0, sys.maxsize

    def state(self) -> dict[str, Tensor]:
        """The number of the epoch and of its minibatches that were taken; the loader's own state, where it has one."""
        state = {"epoch": torch.tensor(self._epoch), "position": torch.tensor(self.position)}
        if self._knows_its_place:
            within = bool(self._under_way) and self.position < self.per_epoch
            state["loader"] = _packed(self.data.batches.state_dict() if within else None)
        return state

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Go to a place that `state` has given, or to the beginning of its epoch."""
        try:
            epoch, position = int(state["epoch"]), int(state["position"])
            place = _unpacked(state["loader"]) if self._knows_its_place else None
        except (ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise ValueError(f"{name} must have a place in an epoch of a loader; it is damaged: {error}") from error
        if epoch < 0 or not 0 <= position <= self.per_epoch:
            raise ValueError(f"{name} must have a place in an epoch of {self.per_epoch} minibatches; got {position}")
        self._epoch, self.position = epoch, position
        self._under_way.clear()
        if place is not None:
            self.data.batches.load_state_dict(place)
        elif self.position < self.per_epoch:
            self.position = 0


def _packed(state: Any) -> Tensor:
    """The state of a loader as the bytes of JSON."""

    def listed(value: Any) -> dict[str, Any]:
        if not isinstance(value, Tensor):
            raise TypeError(f"the state_dict of a loader must have numbers, words and tensors; got {shown(value)}")
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}

    return torch.frombuffer(bytearray(json.dumps(state, default=listed).encode()), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> Any:
    """The inverse of `_packed`."""

    def restored(value: dict[str, Any]) -> Any:
        if value.keys() != {"tensor", "dtype"}:
            return value
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))

    return json.loads(packed.cpu().numpy().tobytes(), object_hook=restored)


def _batch(rows: Dataset, num_data: int, device: torch.device) -> Batch:
    """Rows as arguments of model and guide; contiguous, since a compiled step accepts no other strides."""

    def usual(part: Tensor) -> Tensor:
        return usable(part.to(device, non_blocking=True), device).contiguous()

    return Batch(mapped(usual, rows.x), usual(rows.y), {"num_data": num_data})
