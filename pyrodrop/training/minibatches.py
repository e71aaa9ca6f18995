"""Minibatches of a training: rows in memory, of one data set or of replicates, a loader, or the arguments of a program."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from pyro.infer import RenyiELBO
from torch import Tensor, nn

from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Check, Loader
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.ensemble import members_of
from pyrodrop.guides.guide import Guide
from pyrodrop.inputs import mapped, over_tensors, parts, rebuilt, tensors_in
from pyrodrop.models.network import NetworkModel
from pyrodrop.steps import Arguments, Batch, Call
from pyrodrop.training.loaded import LoadedMinibatches, recordable
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.settings import Settings

_log = logging.getLogger("pyrodrop")


class Minibatches:
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
        self.device = device
        self.replicates: tuple[int, ...] = () if isinstance(data, Dataset) else (len(sets),)
        self.order: Tensor = torch.empty(*self.replicates, 0, dtype=torch.long, device=device)
        self.position: int = 0
        self._starts: Tensor | None = None  # the number of the first row of each replicate, ``[R, 1]``, if not 0
        if len(distinct) > 1:
            self._starts = self.num_rows * torch.arange(len(distinct), device=device)[:, None]

    @property
    def per_epoch(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-self.num_rows // self.size)

    @functools.cached_property
    def all_rows(self) -> Batch:
        """All rows in their order, of one data set without a copy."""
        tensors = self.tensors
        if self.replicates:
            apart = [tensor.unflatten(0, (-1, self.num_rows)) for tensor in tensors]
            tensors = [tensor.expand(*self.replicates, *tensor.shape[1:]).contiguous() for tensor in apart]
        return self._batch(tensors, {})

    def first(self) -> Batch:
        """A minibatch of the first rows, which is not part of the training order."""
        return self.all_rows if self.size == self.num_rows else self._first(self.size)

    def samples(self, steps: int | None) -> list[Arguments]:
        """A minibatch of each shape in `steps` steps, or any number of steps if None; not part of the training order."""
        rest = self.num_rows % self.size
        left = self.order.shape[-1] - self.position or self.num_rows
        reached = steps is None or steps >= -(-left // self.size)
        return [self.first(), *([self._first(rest)] if rest and reached else [])]

    def next(self) -> Batch:
        """The next minibatch; the last of an epoch may be smaller."""
        return self.all_rows if self.size == self.num_rows else self._rows(self.take(1))

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""
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
        """The order of the rows in this epoch, and how many of them were taken."""
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
        return Batch(rebuilt(self._like, xs), y, kwargs)


class WholeCall:
    """The arguments of a Pyro program in place of minibatches: there is one, and an epoch is a step."""

    size = num_rows = per_epoch = 1

    def __init__(self, call: Call) -> None:
        self.call: Call = call

    def first(self) -> Call:
        """The arguments."""
        return self.call

    def samples(self, steps: int | None) -> list[Arguments]:
        """The arguments, which are those of every step."""
        return [self.call]

    def next(self) -> Call:
        """The arguments."""
        return self.call

    def coming(self) -> tuple[int, int]:
        """Size 1, and any number of steps."""
        return 1, sys.maxsize

    def state(self) -> dict[str, Tensor]:
        """Nothing: there is one place."""
        return {}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Nothing to do."""


Batches = Minibatches | LoadedMinibatches | WholeCall
"""Supplies the minibatches of a training, or of replicates."""


def batches_of(
    data: Dataset | Loader | Keywords | Sequence[Dataset | Keywords],
    settings: Settings,
    *,
    check: Check | None = None,
) -> Batches:
    """The minibatches of a data set, or of a list of one for each replicate; for a Pyro program its arguments.

    Args:
        check: raises a ValueError for observations that the likelihood does not allow, where data are read.
    """
    size, device = settings.batch_size, settings.place
    first = data[0] if isinstance(data, Sequence) else data
    if size is not None and isinstance(first, Dataset) and size > len(first):
        _log.warning("batch_size is %d and there are %d rows: every step takes all rows", size, len(first))
    if isinstance(data, Loader):
        return LoadedMinibatches(data, device, check)
    if isinstance(data, Dataset):
        return Minibatches(data, size, device)
    if isinstance(data, Keywords):
        return WholeCall(Call((), over_tensors(lambda tensor: recordable(tensor, device), data.values)))
    programs = [each.values for each in data if isinstance(each, Keywords)]
    if not programs:
        return Minibatches([each for each in data if isinstance(each, Dataset)], size, device)
    columns = zip(*map(tensors_in, programs), strict=True)
    stacked = iter([torch.stack([recordable(tensor, device) for tensor in column]) for column in columns])
    return WholeCall(Call((), over_tensors(lambda _: next(stacked), programs[0])))


def arguments_of(data: Dataset | Keywords | Loader, device: torch.device) -> Arguments:
    """All of the data as arguments of one call; of a loader, a minibatch."""
    if isinstance(data, Loader):
        data = data.sample
    if isinstance(data, Keywords):
        return Call((), data.on(device))
    return Batch(mapped(lambda x: x.to(device), data.x), data.y.to(device), {})


def check_batches(problem: Problem, settings: Settings) -> None:
    """Raise a ValueError for minibatches that the data, model, guide or the model's network do not support."""
    data, size = problem.data, settings.batch_size
    if isinstance(settings.objective, RenyiELBO):
        _check_weighted_draws(problem, size)
    if isinstance(data, Keywords):
        if size is None:
            return
        raise ValueError(
            "batch_size must be None where data are the keyword arguments of a Pyro program, which has no rows; got "
            f"{size}. In the program, pyro.plate(name, size, subsample_size=...) takes a minibatch at every step"
        )
    if isinstance(data, Loader) and size is not None:
        raise ValueError(f"batch_size must be None where a loader makes the minibatches; got {size}")
    rows = len(data)
    size = len(data.sample) if isinstance(data, Loader) else min(size or rows, rows)
    if size == rows:
        return
    for name, function in (("model", problem.model), ("guide", problem.guide)):
        if not takes_num_data(function):
            raise ValueError(
                f"training on minibatches needs a {name} that takes the size of the data set, {name}(x, y, num_data=N); "
                f"this one takes no num_data, so batch_size must be None or at least {rows}; got {size}"
            )
    if isinstance(problem.model, NetworkModel) and problem.model.takes_all_rows(problem.example.x):
        raise ValueError(
            f"this network can only be called on all {rows} rows of x together: batch_size must be None; got {size}"
        )


def _check_weighted_draws(problem: Problem, size: int | None) -> None:
    """Raise a ValueError if importance weights p(y, W) / q(W) of all rows cannot be computed: too few rows, or no q(W)."""
    all_rows = size is None or (isinstance(problem.data, Dataset) and size >= len(problem.data))
    if not all_rows or isinstance(problem.data, Loader):
        raise ValueError(
            "batch_size must be None and data in memory with objective RenyiELBO, which takes the mean over draws of "
            "exp(log weight): that of a part of the rows, scaled to all, has another expectation; got batch_size "
            f"{size}"
        )
    guide: Any = problem.guide
    for member in members_of(guide):
        for name in member.sites if isinstance(member, Guide) else ():
            q = member.posterior(name)
            if isinstance(q, BernoulliMixture) and q.theta == 0:
                raise ValueError(
                    "the objective RenyiELBO weighs draws by the density of the posterior, which at theta = 0 has atoms and "
                    f"none: use theta > 0, or another posterior; got {describe(guide)}, at {name!r}"
                )


def takes_num_data(function: Callable[..., Any]) -> bool:
    """Whether a model or guide takes ``num_data``, the size of the data set that a minibatch stands for."""
    return any(p.name == "num_data" or p.kind is p.VAR_KEYWORD for p in _parameters(function))


def none_by_default(function: Callable[..., Any]) -> list[str]:
    """The names of a model's arguments that are None where they are left out, such as y."""
    return [p.name for p in _parameters(function) if p.default is None]


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    call = function.forward if isinstance(function, nn.Module) else function
    return inspect.signature(call).parameters.values()
