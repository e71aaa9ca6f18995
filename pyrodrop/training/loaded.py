"""Minibatches of a loader, such as a DataLoader, and rows as arguments of model and guide."""

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
from pyrodrop.data.streamed import Check
from pyrodrop.inputs import mapped
from pyrodrop.steps import Batch


class LoadedMinibatches:
    """Minibatches of a loader, which is iterated once per epoch.

    A training that continues begins the interrupted epoch again, unless the loader saves its place by ``state_dict`` and
    ``load_state_dict``, as torchdata's StatefulDataLoader does.

    Args:
        seed: of the training; together with the number of an epoch it seeds the loader's random numbers.
        check: raises a ValueError for observations that the likelihood does not allow.

    Attributes:
        position: number of minibatches of the epoch that were taken.
    """

    def __init__(self, data: Loader, seed: int, device: torch.device, check: Check | None) -> None:
        self.data: Loader = copy.copy(data)
        self._knows_its_place = all(hasattr(data.batches, name) for name in ("state_dict", "load_state_dict"))
        if self._knows_its_place:
            self.data.batches = copy.copy(data.batches)  # so that estimates do not move its place
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
            self._under_way.append(self.data.epoch(self._epoch, self.seed, self._check, self.position))
        rows = next(self._under_way[0])
        self.position += 1
        return batch_of(rows, self.num_rows, self.device)

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
        """Go to a place that `state` has returned, or to the beginning of its epoch."""
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


def batch_of(rows: Dataset, num_data: int, device: torch.device) -> Batch:
    """Rows as arguments of model and guide; contiguous, since a compiled step accepts no other strides."""

    def moved(tensor: Tensor) -> Tensor:
        return recordable(tensor.to(device, non_blocking=True), device).contiguous()

    return Batch(mapped(moved, rows.x), moved(rows.y), {"num_data": num_data})


def recordable(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device, as a tensor that autograd can record, unlike one of `torch.inference_mode`."""
    values = values.to(device)
    return values.clone() if values.is_inference() else values
