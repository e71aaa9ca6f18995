"""Minibatches of a training: rows in memory or read, of one data set or of replicates, or the arguments of a program."""

from __future__ import annotations

import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from pyro.infer import RenyiELBO
from torch import Tensor, nn

from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.data.rows import Rows
from pyrodrop.data.streamed import Check, Streamed
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.ensemble import members_of
from pyrodrop.guides.guide import Guide
from pyrodrop.inputs import mapped, over_tensors, parts, rebuilt, tensors_in
from pyrodrop.models.network import NetworkModel
from pyrodrop.steps import Arguments, Batch, Call
from pyrodrop.training.in_parts import Joint, Part
from pyrodrop.training.loaded import LoadedMinibatches, batch_of, recordable
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.ranks import Ranks, alone
from pyrodrop.training.settings import Settings


class Ordered(ABC):
    """Minibatches of rows by their numbers, in a new random order ``[N]`` every epoch.

    Replicates have an order each, ``[R, N]``. Ranks share an order, which rank 0 draws, and each takes consecutive rows of a
    minibatch. A rank cuts its rows into parts. Row counts differ by at most 1 between ranks and between parts of a rank.
    If a small last minibatch of an epoch has no row for a rank, that rank evaluates the minibatch's first row with weight 0.

    Args:
        size: rows per minibatch, of all ranks together; all rows if None.
        replicates: ``(R,)``, or ``()`` for one data set.
        accumulate: number of parts that the rows of a rank are cut into; fewer if it has fewer rows.
        ranks: the processes that share each minibatch; None for one.
    """

    def __init__(
        self,
        num_rows: int,
        size: int | None,
        device: torch.device,
        *,
        replicates: tuple[int, ...] = (),
        accumulate: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        self.num_rows: int = num_rows
        self.size: int = min(size or num_rows, num_rows)
        self.device, self.replicates = device, replicates
        self.accumulate, self.ranks = accumulate, ranks or alone(device)
        self.order: Tensor = torch.empty(*replicates, 0, dtype=torch.long, device=device)
        self.position: int = 0
        self._starts: Tensor | None = None  # the number of the first row of each replicate, ``[R, 1]``, if not 0

    @abstractmethod
    def rows(self, numbers: Tensor) -> Batch:
        """The rows of these numbers."""

    @property
    def per_epoch(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-self.num_rows // self.size)

    def first(self) -> Any:
        """A minibatch of the first rows, a `Batch` or a `Joint`, which is not part of the training order."""
        return self._first(self.size)

    def samples(self, steps: int | None) -> list[Any]:
        """A minibatch of each shape in `steps` steps, or any number of steps if None; not part of the training order."""
        rest = self.num_rows % self.size
        left = self.order.shape[-1] - self.position or self.num_rows
        reached = steps is None or steps >= -(-left // self.size)
        return [self.first(), *([self._first(rest)] if rest and reached else [])]

    def next(self) -> Any:
        """The next minibatch; the last of an epoch may be smaller."""
        return self._cut(self.take(1))

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size can be taken at once; ``(0, many)`` if none can."""
        return 0, sys.maxsize

    def take(self, count: int) -> Tensor:
        """The numbers of the rows of the next `count` minibatches, which belong to one epoch, ``[..., count * size]``."""
        if self.position >= self.order.shape[-1]:
            self.order, self.position = self.orders(), 0
        first, self.position = self.position, self.position + count * self.size
        return self._placed(self.order[..., first : self.position])

    def orders(self) -> Tensor:
        """A new order of the rows, ``[N]``; of replicates, ``[R, N]``."""
        if self.replicates and self.device.type == "cuda":  # one call, as calls take longer there than their work
            return torch.rand(*self.replicates, self.num_rows, dtype=torch.float64, device=self.device).argsort(-1)
        if self.replicates:
            return torch.stack([torch.randperm(self.num_rows, device=self.device) for _ in range(*self.replicates)])
        order = torch.randperm(self.num_rows, device=self.device)
        return order if self.ranks.size == 1 else self.ranks.of_first(order.cpu()).to(self.device)

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

    def _first(self, count: int) -> Batch | Joint:
        """The first rows, with the strides that rows of `next` have: a compiled step accepts no others."""
        return self._cut(self._placed(torch.arange(count, device=self.device).expand(*self.replicates, -1)))

    def _placed(self, numbers: Tensor) -> Tensor:
        """Numbers of rows within each replicate's data as numbers within those of all."""
        return numbers if self._starts is None else numbers + self._starts

    def _cut(self, numbers: Tensor) -> Batch | Joint:
        """The rows of a minibatch, in the parts that this rank evaluates if there are several parts or ranks."""
        if self.accumulate == self.ranks.size == 1:
            return self.rows(numbers)
        total = len(numbers)
        first, count = _shares(total, self.ranks.size)[self.ranks.rank]
        weight = self.ranks.size / total  # of a row
        if not count:  # the first row of the minibatch, which counts for nothing
            first, count, weight = 0, 1, 0.0
        cuts = _shares(count, min(self.accumulate, count))
        shard = numbers[first : first + count]
        return Joint([Part(self.rows(shard[at : at + size]), weight * size) for at, size in cuts])


class Minibatches(Ordered):
    """Minibatches of rows in memory, as arguments of model and guide: x, y and, for some of the rows, ``num_data``.

    Args:
        data: a data set; or a list of R data sets of equal shapes, one per replicate, for minibatches ``[R, size, ...]``. If
            all are the same object, it is stored once.
        size: rows per minibatch; all rows if None.
        options: of `Ordered`.
    """

    def __init__(
        self, data: Dataset | Sequence[Dataset], size: int | None, device: torch.device, **options: Any
    ) -> None:
        sets = [data] if isinstance(data, Dataset) else list(data)
        distinct = sets[:1] if all(other is sets[0] for other in sets) else sets
        columns = zip(*([*parts(each.x), each.y] for each in distinct), strict=True)
        self.tensors: list[Tensor] = [
            recordable(values[0] if len(values) == 1 else torch.cat(values), device) for values in columns
        ]
        self._like = distinct[0].x
        replicates = () if isinstance(data, Dataset) else (len(sets),)
        super().__init__(len(distinct[0]), size, device, replicates=replicates, **options)
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

    def rows(self, numbers: Tensor) -> Batch:
        """Rows by number, ``[..., size]``, as contiguous tensors."""
        flat = numbers.flatten()  # index_select copies whole rows, indexing by a matrix goes entry by entry
        tensors = [tensor.index_select(0, flat) for tensor in self.tensors]
        if self.replicates:
            tensors = [tensor.unflatten(0, numbers.shape) for tensor in tensors]
        return self._batch(tensors, {"num_data": self.num_rows})

    def next(self) -> Any:
        return self.first() if self.size == self.num_rows else super().next()

    def _cut(self, numbers: Tensor) -> Batch | Joint:
        whole = self.size == self.num_rows and self.accumulate == self.ranks.size == 1
        return self.all_rows if whole else super()._cut(numbers)

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""
        if self.size == self.num_rows:
            return self.size, sys.maxsize
        left = self.num_rows - (self.position if self.position < self.order.shape[-1] else 0)
        return min(self.size, left), max(1, left // self.size)

    def gather(self, rows: Tensor, places: Sequence[Tensor]) -> None:
        """Copy the rows of the numbers from `take` into `places`, ``[count, ..., size, ...]`` for each tensor of x and y."""
        by_step = rows.reshape(*rows.shape[:-1], len(places[0]), -1).movedim(-2, 0)
        for tensor, place in zip(self.tensors, places, strict=True):
            if place.is_contiguous():
                torch.index_select(tensor, 0, by_step.flatten(), out=place.flatten(0, rows.dim()))
                continue
            for numbers, target in zip(by_step, place, strict=True):
                torch.index_select(tensor, 0, numbers.flatten(), out=target.flatten(0, rows.dim() - 1))

    def _batch(self, tensors: Sequence[Tensor], kwargs: dict[str, int]) -> Batch:
        *xs, y = tensors
        return Batch(rebuilt(self._like, xs), y, kwargs)


class ReadMinibatches(Ordered):
    """Minibatches of rows that are read when they are needed, in the order in which `Minibatches` has those in memory.

    Args:
        check: raises a ValueError for observations that the likelihood does not allow.
        options: of `Ordered`.
    """

    def __init__(
        self, data: Rows, size: int | None, device: torch.device, check: Check | None = None, **options: Any
    ) -> None:
        self.data: Rows = data
        self._check = check
        super().__init__(len(data), size, device, **options)

    def next(self) -> Any:
        # a minibatch of all rows is in a new order, too, which augmentations may depend on, unless it is cut into parts
        in_parts = self.accumulate > 1 or self.ranks.size > 1
        return self.first() if in_parts and self.size == self.num_rows else super().next()

    def rows(self, numbers: Tensor) -> Batch:
        return batch_of(self.data.read(numbers, self._check), self.num_rows, self.device)


class WholeCall:
    """The arguments of a Pyro program in place of minibatches: there is one, and an epoch is a step."""

    size = num_rows = per_epoch = 1

    def __init__(self, call: Call) -> None:
        self.call: Call = call

    def first(self) -> Call:
        """The arguments."""
        return self.call

    def samples(self, steps: int | None) -> list[Call]:
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


Batches = Ordered | LoadedMinibatches | WholeCall
"""Supplies the minibatches of a training, or of replicates."""


def batches_of(
    data: Dataset | Streamed | Keywords | Sequence[Dataset | Keywords],
    settings: Settings,
    *,
    check: Check | None = None,
    ranks: Ranks | None = None,
) -> Batches:
    """The minibatches of a data set, or of a list of one for each replicate; for a Pyro program its arguments.

    Args:
        check: raises a ValueError for observations that the likelihood does not allow, where data are read.
        ranks: the processes that share each minibatch; None for one.
    """
    size, device = settings.batch_size, settings.place
    options: dict[str, Any] = {"accumulate": settings.accumulate, "ranks": ranks}
    if isinstance(data, Loader):
        return LoadedMinibatches(data, settings.seed, device, check)
    if isinstance(data, Rows):
        return ReadMinibatches(data, size, device, check, **options)
    if isinstance(data, Dataset):
        return Minibatches(data, size, device, **options)
    if isinstance(data, Keywords):
        return WholeCall(Call((), over_tensors(lambda tensor: recordable(tensor, device), data.values)))
    assert not isinstance(data, Streamed)
    programs = [each.values for each in data if isinstance(each, Keywords)]
    if not programs:
        return Minibatches([each for each in data if isinstance(each, Dataset)], size, device)
    columns = zip(*map(tensors_in, programs), strict=True)
    stacked = iter([torch.stack([recordable(tensor, device) for tensor in column]) for column in columns])
    return WholeCall(Call((), over_tensors(lambda _: next(stacked), programs[0])))


def of_each_shape(samples: Sequence[Arguments | Joint]) -> list[Arguments]:
    """The arguments of the calls of a step, one of each shape, from a minibatch of each shape."""
    calls: dict[Any, Arguments] = {}
    for sample in samples:
        for call in [part.batch for part in sample.parts] if isinstance(sample, Joint) else [sample]:
            calls.setdefault(call.shapes, call)
    return list(calls.values())


def arguments_of(data: Dataset | Keywords | Streamed, device: torch.device) -> Arguments:
    """All of the data as arguments of one call; of data that are read while training, a sample."""
    if isinstance(data, Streamed):
        data = data.sample
    if isinstance(data, Keywords):
        return Call((), data.on(device))
    return Batch(mapped(lambda x: x.to(device), data.x), data.y.to(device), {})


def check_batches(problem: Problem, settings: Settings, ranks: int = 1) -> None:
    """Raise a ValueError for minibatches that the data, model, guide or the model's network do not support."""
    data, size, accumulate = problem.data, settings.batch_size, settings.accumulate
    if isinstance(settings.objective, RenyiELBO):
        _check_weighted_draws(problem, size, ranks)
    got = f"batch_size {size}, accumulate {accumulate}, {ranks} rank(s)"
    whole = size is None and accumulate == ranks == 1
    if isinstance(data, Keywords):
        if whole:
            return
        raise ValueError(
            "batch_size must be None, accumulate 1 and the process alone (distributed=False) where data are the keyword "
            f"arguments of a Pyro program, which has no rows; got {got}. In the program, "
            "pyro.plate(name, size, subsample_size=...) takes a minibatch at every step"
        )
    if isinstance(data, Loader) and not whole:
        raise ValueError(
            "batch_size must be None, accumulate 1 and the process alone (distributed=False) where a loader makes the "
            f"minibatches; got {got}. Pass its data set with batch_size: then every rank reads its own rows"
        )
    rows = len(data)
    size = len(data.sample) if isinstance(data, Loader) else min(size or rows, rows)
    _check_size(size, rows, accumulate, ranks)
    if size < rows or accumulate > 1 or ranks > 1:
        _check_parts(problem, size, rows, accumulate, ranks)


def _check_size(size: int, rows: int, accumulate: int, ranks: int) -> None:
    """Raise a ValueError for more ranks or parts than a minibatch has rows."""
    if ranks > size:
        raise ValueError(
            f"batch_size is the number of rows of a minibatch of all ranks together and must be at least their number, "
            f"{ranks}; got {size} of {rows} rows of data: start fewer ranks, or pass distributed=False"
        )
    if accumulate > size // ranks:
        each = "" if ranks == 1 else f" of each of {ranks} ranks"
        raise ValueError(
            f"accumulate must be at most the number of rows of a minibatch{each}, {size // ranks}; got {accumulate}"
        )


def _check_parts(problem: Problem, size: int, rows: int, accumulate: int, ranks: int) -> None:
    """Raise a ValueError for a model or guide that cannot be called on some of the rows."""
    how = "on minibatches" if accumulate == ranks == 1 else f"in {accumulate * ranks} parts of a minibatch"
    whole = "" if accumulate == 1 else " and accumulate 1"
    got = f"{size}" if accumulate == 1 else f"{size} and {accumulate}"
    if ranks > 1:
        whole, got = f"{whole}, and the process train alone (distributed=False)", f"{got}, on {ranks} ranks"
    for name, function in (("model", problem.model), ("guide", problem.guide)):
        if not takes_num_data(function):
            raise ValueError(
                f"training {how} needs a {name} that takes the size of the data set, "
                f"{name}(x, y, num_data=N); this one takes no num_data, so batch_size must be None or at least "
                f"{rows}{whole}; got {got}"
            )
    if isinstance(problem.model, NetworkModel) and problem.model.takes_all_rows(problem.example.x):
        raise ValueError(
            f"this network can only be called on all {rows} rows of x together: batch_size must be None{whole}; got {got}"
        )


def _check_weighted_draws(problem: Problem, size: int | None, ranks: int) -> None:
    """Raise a ValueError if importance weights p(y, W) / q(W) of all rows cannot be computed: too few rows, or no q(W)."""
    all_rows = size is None or (isinstance(problem.data, Dataset) and size >= len(problem.data))
    if not all_rows or isinstance(problem.data, Loader) or ranks > 1:
        raise ValueError(
            "batch_size must be None, data in memory and the process alone (distributed=False) with objective RenyiELBO, "
            "which takes the mean over draws of exp(log weight): that of a part of the rows, scaled to all, has another "
            f"expectation; got batch_size {size}, {ranks} rank(s)"
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


def _shares(count: int, among: int) -> list[tuple[int, int]]:
    """Start and length of `among` consecutive shares of `count` things; the lengths differ by at most 1."""
    least, more = divmod(count, among)
    sizes = [least + (number < more) for number in range(among)]
    return [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
