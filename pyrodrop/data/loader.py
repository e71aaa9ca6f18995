"""Minibatches from a DataLoader: every epoch is one iteration over it.

A minibatch is a pair (x, y), where x may be a tuple or mapping of tensors; or it is a mapping that contains y under one of
the names in `TARGETS`. Values are checked when they are read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from pyrodrop.checks import count, named_parts, parts, shown
from pyrodrop.data.dataset import Dataset
from pyrodrop.devices import seeded

Check = Callable[[Dataset], None]  # raises a ValueError for rows that a model does not allow
TARGETS = ("y", "label", "labels", "target", "targets")
_END = object()


class Loader:
    """The minibatches that a DataLoader yields.

    Args:
        batches: the DataLoader; its length is the number of minibatches of each of its epochs.
        num_data: number of rows of the data set; None if each of them is visited once per epoch. An epoch must have each row
            at most once, except with samplers that may repeat rows, like WeightedRandomSampler.

    Raises:
        TypeError: `batches` has no length.
        ValueError: `num_data` is not the number of rows of its data set.

    Attributes:
        source: a short description of what is read, for messages.
        num_data: number of rows; None if it is unknown.
        per_epoch: number of minibatches in an epoch.
        shuffles: whether an epoch may have the rows in another order than the data set's.
    """

    def __init__(self, batches: DataLoader[Any], num_data: int | None) -> None:
        self.source = f"{type(batches).__name__}({type(batches.dataset).__name__})"
        try:
            self.per_epoch: int = len(batches)
        except TypeError:
            raise TypeError(
                "a DataLoader must have a length, the number of minibatches of an epoch; got "
                f"{self.source} whose data set has no __len__"
            ) from None
        if self.per_epoch < 1:
            raise ValueError(f"data must have at least one minibatch; got {self.source} of length 0")
        self.batches: Any = batches
        if batches.persistent_workers:  # of which all iterations share one iterator
            self.batches = copy.copy(batches)
            vars(self.batches).update(persistent_workers=False, _iterator=None)
        stream, in_order = isinstance(batches.dataset, IterableDataset), type(_sampler(batches)) is SequentialSampler
        self.shuffles, known = not stream and not in_order, _rows_of(batches)
        self._once = known is not None or stream or in_order
        self.num_data: int | None = known if num_data is None else _stated(num_data, batches, known)
        self._form: dict[str, str] = {}  # dtype and number of axes of each tensor of the rows that were read first

    def __len__(self) -> int:
        if self.num_data is None:
            raise TypeError(f"the number of rows of {self.source} is not known")
        return self.num_data

    fingerprint = None  # unknown, as it would need all rows

    def epoch(self, check: Check | None = None) -> Iterator[Dataset]:
        """The minibatches of an epoch; what draws random numbers takes them from torch's generator at that moment.

        Raises:
            TypeError, ValueError: an item is no minibatch; there are fewer or more minibatches than the length says, or more
                rows than the data set has.
        """
        minibatches, seen = iter(self.batches), 0
        for place in range(self.per_epoch):
            batch = next(minibatches, _END)
            further = place + 1 == self.per_epoch and next(minibatches, _END) is not _END
            if batch is _END or further:
                raise ValueError(
                    f"{self.source} must yield as many minibatches as its length, {self.per_epoch}, in every epoch; got "
                    f"{f'more than {self.per_epoch}' if further else place}"
                )
            rows = self._checked(batch, place, check)
            seen = seen + len(rows) if self._once else len(rows)
            if self.num_data is not None and seen > self.num_data:
                raise ValueError(
                    f"num_data is the number of rows of the data set, at least those of an epoch; got {self.num_data} for "
                    f"{self.source}, which has {seen} rows up to minibatch {place}"
                )
            yield rows

    def pieces(self, check: Check | None = None) -> Iterator[Dataset]:
        """The minibatches of an epoch, with random numbers of torch that are the same at every call."""
        minibatches = self.epoch(check)
        for place in range(self.per_epoch):
            with seeded(place, torch.device("cpu")):
                rows = next(minibatches)
            yield rows

    @cached_property
    def sample(self) -> Dataset:
        """The first minibatch of `pieces`, from which shapes and dtypes are inferred."""
        return self._first[0]

    @cached_property
    def varies(self) -> bool:
        """Whether the rows of the first two minibatches differ in shape, as when sequences are padded per minibatch."""
        shapes = [[tensor.shape[1:] for tensor in (*parts(batch.x), batch.y)] for batch in self._first]
        return shapes[0] != shapes[-1]

    @cached_property
    def _first(self) -> list[Dataset]:
        return [batch for _, batch in zip(range(2), self.pieces(), strict=False)]

    def _checked(self, batch: Any, place: int, check: Check | None) -> Dataset:
        """Minibatch number `place` as a checked data set, with the tensors of a mapping in the order of the first one.

        Raises:
            TypeError: names, numbers of axes or dtypes of the tensors differ from the first rows': a recorded step is fixed.
        """
        try:
            rows = Dataset.of(_pair_of(batch))
            tensors = {**named_parts(rows.x), "y": rows.y}
            form = {name: f"{tensor.dtype} of {tensor.dim()} axes" for name, tensor in tensors.items()}
            self._form = self._form or form
            if form != self._form:
                raise TypeError(f"rows must have the tensors of those that were read first, {self._form}; got {form}")
            if isinstance(rows.x, dict):
                rows.x = {name: rows.x[name] for name in (key.removeprefix("x_") for key in self._form if key != "y")}
            if check is not None:
                check(rows)
            return rows
        except (TypeError, ValueError) as error:
            raise type(error)(f"minibatch {place} of {self.source}: {error}") from error


def loader_of(data: Any, num_data: int | None) -> Any:
    """A `Loader` for a DataLoader to train on; other data unchanged.

    Raises:
        TypeError, ValueError: as `Loader`; `num_data` is given for data whose rows are known, or missing for a loader.
    """
    loader = read_for(data, num_data)
    if loader is None:
        if num_data is not None:
            raise ValueError(
                "num_data is the number of rows behind a DataLoader's minibatches, and must be left out where data have "
                f"rows of their own; got {num_data} and {shown(data)}"
            )
        return data
    if loader.num_data is None and loader is not data:
        raise ValueError(
            f"num_data, the number of rows of the data set, must be given for {loader.source}, whose minibatches need not "
            "be all rows once per epoch: the likelihood of a minibatch counts num_data / rows times"
        )
    return loader


def read_for(data: Any, num_data: int | None = None) -> Loader | None:
    """The minibatches of a DataLoader, or those of a training, for predictions and estimates; None for other data."""
    return data if isinstance(data, Loader) else Loader(data, num_data) if isinstance(data, DataLoader) else None


def _sampler(batches: Any) -> Any:
    """The sampler of a DataLoader's rows, or of items that are minibatches; None for a user-defined batch sampler."""
    by_batch = batches.batch_sampler
    if by_batch is None:
        return batches.sampler
    return by_batch.sampler if type(by_batch) is BatchSampler else None


def _rows_of(batches: Any) -> int | None:
    """The number of rows of a DataLoader's data set if it visits each of them once per epoch; otherwise None."""
    sampler: Any = _sampler(batches)
    if batches.batch_sampler is None:
        return None
    if type(sampler) is SequentialSampler:
        rows, size = len(sampler), batches.batch_sampler.batch_size
        return rows // size * size if batches.batch_sampler.drop_last else rows
    if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(batches.dataset):
        return len(sampler)
    return None


def _stated(num_data: Any, batches: Any, known: int | None) -> int:
    """Check `num_data`, which must be the known number of rows of a DataLoader, unless its items are not single rows."""
    stated = count(num_data, "num_data", "the number of rows of the data set")
    if known is not None and stated != known and batches.collate_fn is default_collate:
        raise ValueError(
            f"num_data is the number of rows of the data set, {known} for this DataLoader; got {stated}: leave it out "
            "(kl_weight weights the KL divergence)"
        )
    return stated


def _pair_of(batch: Any) -> tuple[Any, Any]:
    """x and y of a minibatch.

    Raises:
        TypeError: `batch` is neither a pair nor a mapping with inputs and exactly one of the names in `TARGETS`.
    """
    if isinstance(batch, Mapping):
        names = [name for name in TARGETS if name in batch]
        if len(names) != 1 or len(batch) < 2:
            raise TypeError(
                f"a mapping must have inputs by name, and y under one of the names {', '.join(TARGETS)}; got the names "
                f"{', '.join(map(str, batch)) or 'none'}: yield pairs (x, y)"
            )
        x = {name: value for name, value in batch.items() if name != names[0]}
        return (next(iter(x.values())) if len(x) == 1 else x), batch[names[0]]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(
            "a minibatch must be a pair (x, y), where x may be a tuple or mapping of tensors, ((ids, mask), y), or a "
            f"mapping with y; got {shown(batch)}{size}"
        )
    x, y = batch
    return (tuple(x) if isinstance(x, list) and any(isinstance(value, Tensor) for value in x) else x), y
