"""Minibatches of one data set or of several, each epoch a fresh permutation of the rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.stepper import Batch


class Batches(Protocol):
    """Where a training's minibatches come from."""

    order: Tensor
    position: int

    @property
    def per_epoch(self) -> int: ...

    def first(self) -> Batch: ...

    def next(self) -> Batch: ...


class Minibatches:
    """A data set on a device, handed out as arguments of model and guide: x, y and, for a part of the rows, ``num_data``,
    how many it stands for."""

    def __init__(self, data: Dataset, size: int | None, device: torch.device) -> None:
        self.x, self.y = data.x.to(device), data.y.to(device)
        self.size = min(size or len(data), len(data))
        self.order = torch.empty(0, dtype=torch.long, device=device)
        self.position = 0

    @property
    def per_epoch(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-len(self.x) // self.size)

    def first(self) -> Batch:
        """A minibatch for a first look, which does not count."""
        return self._rows(slice(0, self.size))

    def next(self) -> Batch:
        """The next minibatch; the last of an epoch may be smaller."""
        if self.size == len(self.x):
            return self._rows(slice(None))
        if self.position >= len(self.order):
            self.order, self.position = torch.randperm(len(self.x), device=self.x.device), 0
        rows = self.order[self.position : self.position + self.size]
        self.position += self.size
        return self._rows(rows)

    def _rows(self, rows: slice | Tensor) -> Batch:
        kwargs = {} if self.size == len(self.x) else {"num_data": len(self.x)}
        if isinstance(rows, slice):
            return Batch(self.x[rows], self.y[rows], kwargs)
        return Batch(self.x.index_select(0, rows), self.y.index_select(0, rows), kwargs)


class StackedMinibatches:
    """Minibatches of R replicates at once, ``[R, rows, ...]``: each has its own permutations, by its own generator.

    Args:
        data: one data set for all, or R of equal shapes.
        size: rows of a minibatch; all rows if None.
        generators: one a replicate.
        device: where everything is.
    """

    def __init__(
        self, data: Sequence[Dataset], size: int | None, generators: Sequence[torch.Generator], device: torch.device
    ) -> None:
        first = data[0]
        for number, other in enumerate(data):
            if other.x.shape != first.x.shape or other.y.shape != first.y.shape:
                raise ValueError(
                    f"replicates need data of equal shapes; got x {tuple(first.x.shape)}, y {tuple(first.y.shape)} and, for "
                    f"replicate {number}, x {tuple(other.x.shape)}, y {tuple(other.y.shape)}"
                )
        shared = all(other is first for other in data)
        self.x, self.y = (
            (getattr(first, name) if shared else torch.cat([getattr(d, name) for d in data])).to(device)
            for name in "xy"
        )
        self.rows, self.generators = len(first), generators
        self.size = min(size or self.rows, self.rows)
        numbers = torch.arange(len(generators), device=device)
        self._offsets = numbers[:, None] * (0 if shared else self.rows)
        self._all = torch.arange(self.rows, device=device).expand(len(generators), -1) + self._offsets
        self.order = torch.empty(len(generators), 0, dtype=torch.long, device=device)
        self.position = 0

    @property
    def per_epoch(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-self.rows // self.size)

    def first(self) -> Batch:
        """A minibatch for a first look, which does not count."""
        return self._batch(self._all[:, : self.size])

    def next(self) -> Batch:
        """The next minibatch of every replicate."""
        if self.size == self.rows:
            return self._batch(self._all)
        if self.position >= self.order.shape[1]:
            orders = [torch.randperm(self.rows, generator=g, device=self.x.device) for g in self.generators]
            self.order, self.position = torch.stack(orders) + self._offsets, 0
        rows = self.order[:, self.position : self.position + self.size]
        self.position += self.size
        return self._batch(rows)

    def _batch(self, rows: Tensor) -> Batch:
        kwargs = {} if self.size == self.rows else {"num_data": self.rows}
        flat = rows.reshape(-1)  # index_select copies whole rows where indexing by a matrix goes entry by entry
        x, y = (of.index_select(0, flat).reshape(*rows.shape, *of.shape[1:]) for of in (self.x, self.y))
        return Batch(x, y, kwargs)


def check_num_data(size: int, rows: int, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
    """Raise a ValueError if minibatches are asked for and model or guide cannot be told what they stand for."""
    for name, part in (("model", model), ("guide", guide)):
        if size < rows and not takes_num_data(part):
            raise ValueError(
                f"training on minibatches needs a {name} that can be told how many data they stand for, "
                f"{name}(x, y, num_data=N); this one takes no num_data, so batch_size must be None or at least "
                f"{rows}; got {size}"
            )


def takes_num_data(part: Callable[..., Any]) -> bool:
    """Whether a model or guide can be told how many data a minibatch stands for."""
    call = part.forward if isinstance(part, torch.nn.Module) else part
    accepted = inspect.signature(call).parameters.values()
    return any(p.name == "num_data" or p.kind is p.VAR_KEYWORD for p in accepted)
