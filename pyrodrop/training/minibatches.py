"""Minibatches of one data set or of several; every epoch has a new random order of the rows."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrodrop.compiled import Batch
from pyrodrop.data import Dataset
from pyrodrop.inputs import Inputs, mapped, num_rows, parts, rebuilt
from pyrodrop.models.network import NetworkModel


class Batches(Protocol):
    """Supplies the minibatches of a training."""

    size: int

    @property
    def num_rows(self) -> int: ...

    @property
    def per_epoch(self) -> int: ...

    def first(self) -> Any: ...

    def samples(self, steps: int | None) -> list[Any]: ...

    def next(self) -> Any: ...

    def state(self) -> dict[str, Tensor]:
        """The place in the epoch."""

    def load(self, state: Mapping[str, Tensor], name: str = ...) -> None:
        """Go to a place that `state` has given; a ValueError that names the state if it is none in these data."""


class Ordered:
    """What minibatches of rows by their numbers know about a place in an epoch."""

    order: Tensor
    position: int
    size: int
    num_rows: int

    @property
    def per_epoch(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-self.num_rows // self.size)

    def state(self) -> dict[str, Tensor]:
        """The order of the rows in this epoch, and how many of them were taken."""
        return {"order": self.order, "position": torch.tensor(self.position)}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Go to a place that `state` has given: an order of the rows, or none yet, and the end of a minibatch."""
        order, position = state["order"], state["position"].flatten().tolist()
        rows = torch.arange(self.num_rows).expand(*self.order.shape[:-1], -1)
        whole = order.dtype == rows.dtype and torch.equal(order.cpu().sort(-1).values, rows)
        ends = range(0, self.per_epoch * self.size * whole + 1, self.size)
        if not (whole or not order.numel()) or len(position) != 1 or position[0] not in ends:
            raise ValueError(
                f"{name} must have a place in an epoch of {self.num_rows} rows; it is of other data, or damaged"
            )
        self.order, self.position = order.to(self.order.device), int(position[0])


class Minibatches(Ordered):
    """Minibatches of one data set, as arguments of model and guide: x, y and, for a part of the rows, ``num_data``.

    Args:
        size: rows per minibatch; all rows if None.
    """

    def __init__(self, data: Dataset, size: int | None, device: torch.device) -> None:
        self.x: Any = mapped(lambda x: usable(x, device), data.x)
        self.y: Tensor = usable(data.y, device)
        self._begin(len(data), size, device)

    def _begin(self, rows: int, size: int | None, device: torch.device) -> None:
        """Start before the first epoch of so many rows."""
        self.num_rows, self.size = rows, min(size or rows, rows)
        self.order = torch.empty(0, dtype=torch.long, device=device)
        self.position = 0

    def first(self) -> Batch:
        """A minibatch of the first rows, which is not one of the training's."""
        return self._first(self.size)

    def samples(self, steps: int | None) -> list[Batch]:
        """A minibatch of each shape that so many steps use, of any number of steps if None; they are not the training's."""
        rest = self.num_rows % self.size
        reached = steps is None or steps >= -(-(len(self.order) - self.position or self.num_rows) // self.size)
        return [self.first(), *([self._first(rest)] if rest and reached else [])]

    def next(self) -> Batch:
        """The next minibatch; the last of an epoch may be smaller."""
        return self._all() if self.size == self.num_rows else self.rows(self.take(1))

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""
        if self.size == self.num_rows:
            return self.size, sys.maxsize
        left = self.num_rows - (self.position if self.position < len(self.order) else 0)
        return min(self.size, left), max(1, left // self.size)

    def gather(self, rows: Tensor, places: Sequence[Tensor]) -> None:
        """Copy rows, by number, into tensors ``[count, size, ...]``, one per tensor of x and y."""
        for of, place in zip([*parts(self.x), self.y], places, strict=True):
            if place.is_contiguous():
                torch.index_select(of, 0, rows, out=place.flatten(0, 1))
                continue
            for own, target in zip(rows.view(len(place), -1), place, strict=True):
                torch.index_select(of, 0, own, out=target)

    def take(self, count: int) -> Tensor:
        """The numbers of the rows of the next `count` minibatches, which belong to one epoch."""
        if self.position >= len(self.order):
            self.order, self.position = torch.randperm(self.num_rows, device=self.order.device), 0
        first, self.position = self.position, self.position + count * self.size
        return self.order[first : self.position]

    def _first(self, count: int) -> Batch:
        """The first rows, with the strides that rows of `next` have: a compiled step accepts no others."""
        return self._all() if self.size == self.num_rows else self.rows(torch.arange(count, device=self.order.device))

    def rows(self, rows: Tensor | slice) -> Batch:
        """A part of the rows, by number, as contiguous tensors."""

        def chosen(of: Tensor) -> Tensor:
            return of[rows].contiguous() if isinstance(rows, slice) else of.index_select(0, rows)

        return Batch(mapped(chosen, self.x), chosen(self.y), {"num_data": self.num_rows})

    def _all(self) -> Batch:
        """The whole data set, without a copy."""
        return Batch(self.x, self.y, {})


class StackedMinibatches(Ordered):
    """Minibatches of R replicates at once, ``[R, rows, ...]``; every replicate has an order of rows of its own.

    torch's default generator draws all orders.

    Args:
        data: R data sets of equal shapes; those that are the same object are stored once.
        size: rows per minibatch; all rows if None.
    """

    def __init__(self, data: Sequence[Dataset], size: int | None, device: torch.device) -> None:
        first = data[0]
        for number, other in enumerate(data):
            if _shapes(other) != _shapes(first):
                raise ValueError(
                    f"replicates need data of equal shapes; got {_shapes(first)} and, for replicate {number}, "
                    f"{_shapes(other)}"
                )
        shared = all(other is first for other in data)
        columns = zip(*([*parts(own.x), own.y] for own in (data[:1] if shared else data)), strict=True)
        self.y: Tensor
        *xs, self.y = (usable(column[0] if shared else torch.cat(column), device) for column in columns)
        self.x: Any = rebuilt(first.x, xs)
        self.num_rows = len(first)
        self.size = min(size or self.num_rows, self.num_rows)
        numbers = torch.arange(len(data), device=device)
        self._offsets = numbers[:, None] * (0 if shared else self.num_rows)
        self._all = torch.arange(self.num_rows, device=device).expand(len(data), -1) + self._offsets
        self.order = torch.empty(len(data), 0, dtype=torch.long, device=device)
        self.position = 0

    @property  # type: ignore[override]
    def order(self) -> Tensor:
        """The order of the rows in this epoch, ``[R, N]``, or ``[R, 0]`` before the first."""
        return self._order

    @order.setter
    def order(self, order: Tensor) -> None:
        self._order, self._places = order, order + self._offsets

    def first(self) -> Batch:
        """A minibatch of the first rows, which is not one of the training's."""
        return self._batch(self._all[:, : self.size])

    def samples(self, steps: int | None) -> list[Batch]:
        """A minibatch of each shape that so many steps use, of any number of steps if None; they are not the training's."""
        rest = self.num_rows % self.size
        left = self.order.shape[1] - self.position or self.num_rows
        reached = steps is None or steps >= -(-left // self.size)
        return [self.first(), *([self._batch(self._all[:, :rest])] if rest and reached else [])]

    def next(self) -> Batch:
        """The next minibatch of every replicate."""
        return self._batch(self._all if self.size == self.num_rows else self.take(1))

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""
        if self.size == self.num_rows:
            return self.size, sys.maxsize
        left = self.num_rows - (self.position if self.position < self.order.shape[1] else 0)
        return min(self.size, left), max(1, left // self.size)

    def take(self, count: int) -> Tensor:
        """The numbers of the rows of the next `count` minibatches, which belong to one epoch, ``[R, count * size]``."""
        if self.position >= self.order.shape[1]:
            self.order, self.position = self.orders(), 0
        first, self.position = self.position, self.position + count * self.size
        return self._places[:, first : self.position]

    def orders(self) -> Tensor:
        """New orders of the rows, ``[R, N]``."""
        return torch.stack([torch.randperm(self.num_rows, device=self.y.device) for _ in self._offsets])

    def gather(self, rows: Tensor, places: Sequence[Tensor]) -> None:
        """Copy rows ``[R, count * size]``, as `take` gives them, into ``[count, R, size, ...]``, one of x and y each."""
        count = len(places[0])
        by_step = rows.unflatten(1, (count, -1)).transpose(0, 1).reshape(count, -1)
        for of, place in zip([*parts(self.x), self.y], places, strict=True):
            numbers = of.numel() == len(of)  # one per row: `torch.take` has less overhead for each
            for own, target in zip(by_step, place, strict=True):
                if numbers and of.is_contiguous():
                    torch.take(of, own, out=target.view(-1))
                else:
                    torch.index_select(of, 0, own, out=target.flatten(0, 1))

    def _batch(self, rows: Tensor) -> Batch:
        kwargs = {} if self.size == self.num_rows else {"num_data": self.num_rows}
        flat = rows.reshape(-1)  # index_select copies whole rows where indexing by a matrix goes entry by entry

        def chosen(of: Tensor) -> Tensor:
            return of.index_select(0, flat).reshape(*rows.shape, *of.shape[1:])

        return Batch(mapped(chosen, self.x), chosen(self.y), kwargs)


def usable(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device, as a tensor that autograd can record, unlike one of `torch.inference_mode`."""
    values = values.to(device)
    return values.clone() if values.is_inference() else values


def _shapes(data: Dataset) -> str:
    """The shapes of x and y, in words."""
    own = data.x.items() if isinstance(data.x, dict) else enumerate(parts(data.x))
    xs = [f"x {tuple(data.x.shape)}"] if isinstance(data.x, Tensor) else [f"x[{n!r}] {tuple(x.shape)}" for n, x in own]
    return ", ".join([*xs, f"y {tuple(data.y.shape)}"])


def check_minibatches(
    size: int | None,
    x: Inputs,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *,
    parts: int = 1,
    ranks: int = 1,
    of: int | None = None,
) -> None:
    """Raise a ValueError for minibatches that model, guide or the model's network do not support.

    Args:
        size: rows per minibatch; all rows if None.
        x: all rows, or some of them.
        parts: number of parts that a minibatch, or a rank's share of it, is evaluated in.
        of: number of all rows, where x are some.
    """
    rows = of or num_rows(x)
    size = min(size or rows, rows)
    if ranks > size:
        raise ValueError(
            f"batch_size is the number of rows of a minibatch of all ranks together and must be at least their number, "
            f"{ranks}; got {size} of {rows} rows of data: start fewer ranks, or pass distributed=False"
        )
    if parts > size // ranks:
        each = "" if ranks == 1 else f" of each of {ranks} ranks"
        raise ValueError(
            f"accumulate must be at most the number of rows of a minibatch{each}, {size // ranks}; got {parts}"
        )
    if size == rows and parts == ranks == 1:
        return
    how = "on minibatches" if parts == ranks == 1 else f"in {parts * ranks} parts of a minibatch"
    whole = "" if parts == 1 else " and accumulate 1"
    got = f"{size}" if parts == 1 else f"{size} and {parts}"
    if ranks > 1:
        whole, got = f"{whole}, and the process train alone (distributed=False)", f"{got}, on {ranks} ranks"
    for name, part in (("model", model), ("guide", guide)):
        if not takes_num_data(part):
            raise ValueError(
                f"training {how} needs a {name} that takes the size of the data set, "
                f"{name}(x, y, num_data=N); this one takes no num_data, so batch_size must be None or at least "
                f"{rows}{whole}; got {got}"
            )
    if isinstance(model, NetworkModel) and model.takes_all_rows(x):
        raise ValueError(
            f"this network can only be called on all {rows} rows of x together: batch_size must be None{whole}; got {got}"
        )


def takes_num_data(part: Callable[..., Any]) -> bool:
    """Whether a model or guide takes ``num_data``, the size of the data set that a minibatch stands for."""
    return any(p.name == "num_data" or p.kind is p.VAR_KEYWORD for p in _parameters(part))


def none_by_default(part: Callable[..., Any]) -> list[str]:
    """The names of a model's arguments that are None where they are left out, such as y."""
    return [p.name for p in _parameters(part) if p.default is None]


def _parameters(part: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    call = part.forward if isinstance(part, torch.nn.Module) else part
    return inspect.signature(call).parameters.values()
