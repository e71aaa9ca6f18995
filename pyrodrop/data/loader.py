"""Minibatches from an iterable, such as a DataLoader: every epoch is one iteration over it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from pyrodrop.arguments import count, shown
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.streamed import Check, RandomStreams, Streamed, mixed
from pyrodrop.inputs import parts

_log = logging.getLogger("pyrodrop")
_END = object()


class Loader(Streamed):
    """Minibatches that an iterable yields, the same ones for the same seed and epoch.

    In epoch e, torch's, Python's and NumPy's generators, and those of a DataLoader, have states that depend on the seed and
    e, and ``set_epoch(e)`` is called on every object that has it.

    Args:
        batches: a DataLoader, or another iterable with a length, the number of minibatches of each of its epochs.
        num_data: number of rows of the data set; None for a DataLoader that visits all rows of a data set with a length. An
            epoch must have each row at most once, except with samplers that may repeat rows, like WeightedRandomSampler.

    Raises:
        TypeError: `batches` cannot be iterated again, or has no length.
        ValueError: the number of rows is not known, or `num_data` is not that of the data set of the DataLoader.

    Attributes:
        per_epoch: number of minibatches in an epoch.
    """

    def __init__(self, batches: Iterable[Any], num_data: int | None, *, missing: bool = False) -> None:
        self.batches: Any = _with_new_workers(batches)
        of = f"({type(batches.dataset).__name__})" if isinstance(batches, DataLoader) else ""
        self.source, self.missing = f"{type(batches).__name__}{of}", missing
        if not hasattr(batches, "__iter__") or hasattr(batches, "__next__"):
            raise TypeError(
                "data must be an iterable of minibatches that can be iterated again, once per epoch, such as a DataLoader "
                f"or a list; got {shown(batches)}"
            )
        try:
            self.per_epoch: int = len(batches)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(
                "an iterable of minibatches must have a length, the number of minibatches of an epoch; got "
                f"{self.source} without __len__: give its class, or the IterableDataset of a DataLoader, one"
            ) from None
        if self.per_epoch < 1:
            raise ValueError(f"data must have at least one minibatch; got {self.source} of length 0")
        ordered = (
            isinstance(getattr(batches, "dataset", None), IterableDataset)
            or type(_sampler(batches)) is SequentialSampler
        )
        if isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset):
            self.first_row = lambda: batches.collate_fn([batches.dataset[0]])
        self.shuffles: bool = isinstance(batches, DataLoader) and not ordered
        known, self._once = _visited(batches)
        self.num_data = known if num_data is None else _stated(num_data, batches, known)
        self._warned = False
        owners = [getattr(batches, name, None) for name in ("sampler", "batch_sampler", "dataset")]
        owners += [getattr(owner, "sampler", None) for owner in owners]
        self._with_epochs: list[Any] = [
            owner for owner in (batches, *owners) if callable(getattr(owner, "set_epoch", None))
        ]
        generators = [getattr(owner, "generator", None) for owner in (batches, *owners)]
        self._generators = {g: g.initial_seed() for g in generators if isinstance(g, torch.Generator)}

    def epoch(self, number: int, seed: int, check: Check | None = None, start: int = 0) -> Iterator[Dataset]:
        """The minibatches of an epoch; from number `start` on, for a loader whose ``load_state_dict`` set that position.

        Raises:
            TypeError, ValueError: an item is no minibatch; there are fewer or more minibatches than the length says, or more
                rows than the data set has.
        """
        seeds = {generator: mixed(initial, number) for generator, initial in self._generators.items()}
        streams = RandomStreams(mixed(seed, number), seeds)
        draws = nullcontext if isinstance(self.batches, list | tuple) else streams.current
        for owner in self._with_epochs:
            owner.set_epoch(number)
        with draws():
            minibatches = iter(self.batches)
        seen = largest = 0
        for place in range(start, self.per_epoch):
            with draws():
                batch = next(minibatches, _END)
                further = place + 1 == self.per_epoch and next(minibatches, _END) is not _END
            if batch is _END or further:
                count = f"more than {self.per_epoch}" if further else place
                raise ValueError(
                    f"{self.source} must yield as many minibatches as its length, {self.per_epoch}, in every epoch; got "
                    f"{count} in epoch {number}"
                )
            rows = self.checked(batch, f"minibatch {place} in epoch {number}", check)
            seen = seen + len(rows) if self._once else len(rows)
            if self.num_data is not None and seen > self.num_data:
                raise ValueError(
                    f"num_data is the number of rows of the data set, at least those of an epoch; got {self.num_data} for "
                    f"{self.source}, which has {seen} rows up to minibatch {place}"
                )
            largest = max(largest, len(rows))
            if place + 1 == self.per_epoch and self._once and not start:
                self._warn_if_few(seen, largest)
            yield rows

    def _warn_if_few(self, seen: int, left_out: int) -> None:
        """Warn once that an epoch has fewer rows than the data set, by more than a dropped last minibatch."""
        if self.num_data is None or seen + left_out >= self.num_data or self._warned:
            return
        self._warned = True
        _log.warning(
            "num_data is %d, the number of rows of the data set, and %s has %d in an epoch: their likelihood counts %.3g "
            "times, as if they stood for all of them",
            *(self.num_data, self.source, seen, self.num_data / seen),
        )

    @cached_property
    def sample(self) -> Dataset:
        return self._first[0]

    @cached_property
    def varies(self) -> bool:
        """Whether the rows of the first two minibatches differ in shape, as when sequences are padded per minibatch."""
        shapes = [[tensor.shape[1:] for tensor in (*parts(batch.x), batch.y)] for batch in self._first]
        return shapes[0] != shapes[-1]

    @cached_property
    def _first(self) -> list[Dataset]:
        return [batch for batch, _ in zip(self.epoch(0, 0), range(2), strict=False)]

    def pieces(self, check: Check | None = None) -> Iterator[Dataset]:
        yield from self.epoch(0, 0, check)


def _stated(num_data: Any, batches: Any, known: int | None) -> int:
    """Check `num_data`: for a DataLoader it is at least the rows visited per epoch and at most those of its data set."""
    stated = count(num_data, "num_data", "the number of rows of the data set")
    dataset: Any = getattr(batches, "dataset", None)
    by_row = getattr(batches, "collate_fn", None) is default_collate and not isinstance(dataset, IterableDataset)
    if by_row and hasattr(dataset, "__len__"):
        least, most = known or 1, len(dataset)
        if not least <= stated <= most:
            allowed = f"{most}" if least == most else f"from {least} to {most}"
            raise ValueError(
                f"num_data is the number of rows of the data set, {allowed} for this DataLoader; got {stated}: leave it out "
                "(likelihood_power weights the likelihood)"
            )
    return stated


def _with_new_workers(batches: Any) -> Any:
    """A copy of a DataLoader without persistent workers, whose random numbers would continue those of the last epoch."""
    if not isinstance(batches, DataLoader) or not batches.persistent_workers:
        return batches
    other = copy.copy(batches)
    vars(other).update(persistent_workers=False, _iterator=None)
    return other


def _sampler(batches: Any) -> Any:
    """The sampler that draws the rows of a DataLoader; None if unknown, as with a user-defined batch sampler."""
    by_batch = getattr(batches, "batch_sampler", None)
    return by_batch.sampler if isinstance(batches, DataLoader) and type(by_batch) is BatchSampler else None


def _visited(batches: Any) -> tuple[int | None, bool]:
    """How many rows of its data set a DataLoader visits per epoch, None if unknown; and whether each at most once."""
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return None, True
    by_batch: Any = batches.batch_sampler
    sampler: Any = batches.sampler if by_batch is None else _sampler(batches)
    in_order = type(sampler) is SequentialSampler
    if not in_order and (type(sampler) is not RandomSampler or sampler.replacement):
        return None, False
    if by_batch is None:
        return None, True
    rows, size = len(sampler), by_batch.batch_size
    if in_order:
        return (rows // size * size if by_batch.drop_last else rows), True
    dataset: Any = batches.dataset
    return (rows if rows == len(dataset) else None), True
