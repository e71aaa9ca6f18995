"""Minibatches of a training: rows in memory, of one data set or of replicates, a loader, or the arguments of a program."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.checks import mapped, over_tensors, parts
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Check, Loader
from pyrodrop.steps import Arguments, Batch, Call

_log = logging.getLogger("pyrodrop")


class Rows:
    """Supplies the minibatches of a training: in this class the arguments of a Pyro program, whose epoch is a step.

    Attributes:
        per_epoch: number of minibatches in an epoch.
    """

    size = num_rows = per_epoch = 1

    def __init__(self, call: Arguments) -> None:
        self.call: Arguments = call

    def samples(self, steps: int | None) -> list[Arguments]:
        """A minibatch of each shape in `steps` steps, or any number of steps if None; not part of the training order."""
        return [self.call]

    def next(self) -> Arguments:
        """The next minibatch; the last of an epoch may be smaller."""
        return self.call

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes; the size is
        0 where minibatches are read one at a time."""
        return self.size, sys.maxsize

    def state(self) -> dict[str, Tensor]:
        """The place in the epoch; empty where there is one place, or where an epoch is begun again."""
        return {}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Go to a place that `state` has returned."""


class Minibatches(Rows):
    """Minibatches of rows in memory, as arguments of model and guide: x, y and, for some of the rows, ``num_data``.

    Every epoch has the rows in a new random order ``[N]``; replicates have an order each, ``[R, N]``.

    Args:
        data: a data set; or a list of R data sets of equal shapes, one per replicate, for minibatches ``[R, size, ...]``. If
            all are the same object, it is stored once.
        size: rows per minibatch; all rows if None.
    """

    def __init__(self, data: Dataset | Sequence[Dataset], size: int | None, device: torch.device) -> None:
        sets = [data] if isinstance(data, Dataset) else list(data)
        distinct = sets[:1] if all(other is sets[0] for other in sets) else sets
        columns = zip(*([*parts(each.x), each.y] for each in distinct), strict=True)
        self.tensors: list[Tensor] = [
            recordable(values[0] if len(values) == 1 else torch.cat(values), device) for values in columns
        ]
        self._like = distinct[0].x
        self.num_rows: int = len(distinct[0])
        self.size: int = min(size or self.num_rows, self.num_rows)
        self.per_epoch: int = -(-self.num_rows // self.size)
        self.device = device
        self.replicates: tuple[int, ...] = () if isinstance(data, Dataset) else (len(sets),)
        self.order: Tensor = torch.empty(*self.replicates, 0, dtype=torch.long, device=device)
        self.position: int = 0
        self._starts: Tensor | None = None  # the number of the first row of each replicate, ``[R, 1]``, if not 0
        if len(distinct) > 1:
            self._starts = self.num_rows * torch.arange(len(distinct), device=device)[:, None]

    @functools.cached_property
    def all_rows(self) -> Batch:
        """All rows in their order, of one data set without a copy."""
        tensors = self.tensors
        if self.replicates:
            apart = [tensor.unflatten(0, (-1, self.num_rows)) for tensor in tensors]
            tensors = [tensor.expand(*self.replicates, *tensor.shape[1:]).contiguous() for tensor in apart]
        return self._batch(tensors, {})

    def samples(self, steps: int | None) -> list[Arguments]:
        if self.size == self.num_rows:
            return [self.all_rows]
        rest = self.num_rows % self.size
        left = self.order.shape[-1] - self.position or self.num_rows
        reached = steps is None or steps >= -(-left // self.size)
        return [self._first(self.size), *([self._first(rest)] if rest and reached else [])]

    def next(self) -> Batch:
        return self.all_rows if self.size == self.num_rows else self._rows(self.take(1))

    def coming(self) -> tuple[int, int]:
        if self.size == self.num_rows:
            return self.size, sys.maxsize
        left = self.num_rows - (self.position if self.position < self.order.shape[-1] else 0)
        return min(self.size, left), max(1, left // self.size)

    def take(self, count: int) -> Tensor:
        """The numbers of the rows of the next `count` minibatches, which belong to one epoch, ``[..., count * size]``."""
        if self.position >= self.order.shape[-1]:
            self.order, self.position = self.orders(), 0
        first, self.position = self.position, self.position + count * self.size
        return self._placed(self.order[..., first : self.position])

    def gather(self, rows: Tensor, places: Sequence[Tensor]) -> None:
        """Copy the rows of the numbers from `take` into `places`, ``[count, ..., size, ...]`` for each tensor of x and y."""
        by_step = rows.reshape(*rows.shape[:-1], len(places[0]), -1).movedim(-2, 0)
        for tensor, place in zip(self.tensors, places, strict=True):
            if place.is_contiguous():
                torch.index_select(tensor, 0, by_step.flatten(), out=place.flatten(0, rows.dim()))
                continue
            for numbers, target in zip(by_step, place, strict=True):
                torch.index_select(tensor, 0, numbers.flatten(), out=target.flatten(0, rows.dim() - 1))

    def orders(self) -> Tensor:
        """A new order of the rows, ``[N]``; of replicates, ``[R, N]``."""
        if self.replicates and self.device.type == "cuda":  # one call, as calls take longer there than their work
            return torch.rand(*self.replicates, self.num_rows, dtype=torch.float64, device=self.device).argsort(-1)
        if self.replicates:
            return torch.stack([torch.randperm(self.num_rows, device=self.device) for _ in range(*self.replicates)])
        return torch.randperm(self.num_rows, device=self.device)

    def state(self) -> dict[str, Tensor]:
        return {"order": self.order, "position": torch.tensor(self.position)}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Go to a place that `state` has returned: an order of the rows, or none yet, and the end of a minibatch."""
        order, position = state["order"], state["position"].flatten().tolist()
        rows = torch.arange(self.num_rows).expand(*self.replicates, -1)
        whole = order.dtype == rows.dtype and torch.equal(order.cpu().sort(-1).values, rows)
        ends = range(0, self.per_epoch * self.size * whole + 1, self.size)
        if not (whole or not order.numel()) or len(position) != 1 or position[0] not in ends:
            raise ValueError(
                f"{name} must have a place in an epoch of {self.num_rows} rows; it is of other data, or damaged"
            )
        self.order, self.position = order.to(self.device), int(position[0])

    def _first(self, count: int) -> Batch:
        """The first rows, with the strides that rows of `next` have: a compiled step accepts no others."""
        return self._rows(self._placed(torch.arange(count, device=self.device).expand(*self.replicates, -1)))

    def _placed(self, numbers: Tensor) -> Tensor:
        """Numbers of rows within each replicate's data as numbers within those of all."""
        return numbers if self._starts is None else numbers + self._starts

    def _rows(self, numbers: Tensor) -> Batch:
        """Rows by number, ``[..., size]``, as contiguous tensors."""
        flat = numbers.flatten()  # index_select copies whole rows, indexing by a matrix goes entry by entry
        tensors = [tensor.index_select(0, flat) for tensor in self.tensors]
        if self.replicates:
            tensors = [tensor.unflatten(0, numbers.shape) for tensor in tensors]
        return self._batch(tensors, {"num_data": self.num_rows})

    def _batch(self, tensors: Sequence[Tensor], kwargs: dict[str, int]) -> Batch:
        *xs, y = tensors
        following = iter(xs)
        return Batch((mapped(lambda _: next(following), self._like), y), kwargs)


class Loaded(Rows):
    """Minibatches of a loader, which is iterated once per epoch. A training that continues begins its epoch again.

    Args:
        check: raises a ValueError for observations that the likelihood does not allow.
    """

    def __init__(self, data: Loader, device: torch.device, check: Check | None) -> None:
        self.data, self.device, self._check = data, device, check
        self.size: int = len(data.sample)
        self.num_rows: int = len(data)
        self.per_epoch: int = data.per_epoch
        self._under_way: list[Iterator[Dataset]] = []  # the epoch, where one was begun
        # PyTorch waits five seconds for each worker of an iterator that is freed in a cycle of references.
        weakref.finalize(self, self._under_way.clear)

    def samples(self, steps: int | None) -> list[Arguments]:
        rest = self.num_rows - (self.per_epoch - 1) * self.size
        reached = 0 < rest < self.size and (steps is None or steps >= self.per_epoch)
        sample = self.data.sample
        return [self._batch(rows) for rows in (sample, *([sample.first(rest)] if reached else []))]

    def next(self) -> Batch:
        rows = next(self._under_way[0], None) if self._under_way else None
        if rows is None:
            self._under_way[:] = [self.data.epoch(self._check)]
            rows = next(self._under_way[0])
        return self._batch(rows)

    def coming(self) -> tuple[int, int]:
        return 0, sys.maxsize

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        self._under_way.clear()

    def _batch(self, rows: Dataset) -> Batch:
        """Rows as arguments of model and guide; contiguous, since a compiled step accepts no other strides."""

        def moved(tensor: Tensor) -> Tensor:
            return recordable(tensor.to(self.device, non_blocking=True), self.device).contiguous()

        return Batch((mapped(moved, rows.x), moved(rows.y)), {"num_data": self.num_rows})


def rows_of(
    data: Dataset | Loader | Keywords | Sequence[Dataset],
    size: int | None,
    device: torch.device,
    *,
    check: Check | None = None,
) -> Any:
    """The `Rows` of a data set, or of a list of one for each replicate.

    Args:
        size: rows per minibatch; all rows if None.
        check: raises a ValueError for observations that the likelihood does not allow, where data are read.
    """
    if isinstance(data, Loader):
        return Loaded(data, device, check)
    if isinstance(data, Keywords):
        return Rows(Call((), over_tensors(lambda tensor: recordable(tensor, device), data.values)))
    rows = Minibatches(data, size, device)
    if size is not None and size > rows.num_rows:
        _log.warning("batch_size is %d and there are %d rows: every step takes all rows", size, rows.num_rows)
    return rows


def arguments_of(data: Dataset | Keywords | Loader, device: torch.device) -> Arguments:
    """All of the data as arguments of one call; of a loader, a minibatch."""
    if isinstance(data, Keywords):
        return Call((), data.on(device))
    data = data.sample if isinstance(data, Loader) else data
    return Batch((mapped(lambda x: x.to(device), data.x), data.y.to(device)), {})


def recordable(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device, as a tensor that autograd can record, unlike one of `torch.inference_mode`."""
    values = values.to(device)
    return values.clone() if values.is_inference() else values


def takes_num_data(function: Callable[..., Any]) -> bool:
    """Whether a model or guide takes ``num_data``, the size of the data set that a minibatch stands for."""
    return any(p.name == "num_data" or p.kind is p.VAR_KEYWORD for p in _parameters(function))


def none_by_default(function: Callable[..., Any]) -> list[str]:
    """The names of a model's arguments that are None where they are left out, such as y."""
    return [p.name for p in _parameters(function) if p.default is None]


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    call = function.forward if isinstance(function, nn.Module) else function
    return inspect.signature(call).parameters.values()
