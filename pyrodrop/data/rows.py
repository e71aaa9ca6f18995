"""Rows that are read by index, from a torch Dataset or from memory-mapped files."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from pyrodrop.arguments import shown
from pyrodrop.arrays import copied, tensor_of
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.streamed import Check, RandomStreams, Streamed, mixed

PIECE = 1000  # rows read at a time when all rows are read
_SAMPLE = 256  # rows of `Rows.sample`
_RESIDENT = 32 * 2**20  # bytes of mapped files that may stay in memory
_PAGES = 2**16  # bytes that reading one value of a mapped file brings into memory


class Rows(Streamed):
    """Rows that are read by index.

    Args:
        read: function of a vector of row indices that returns these rows as a minibatch.
        source: a short description of what is read, for messages.
    """

    num_data: int

    def __init__(self, read: Callable[[Tensor], Any], num_data: int, source: str, *, missing: bool = False) -> None:
        self._read, self.num_data, self.source, self.missing = read, num_data, source, missing

    def read(self, numbers: Tensor, check: Check | None = None) -> Dataset:
        """The rows with these indices."""
        numbers = numbers.cpu()
        return self.checked(self._read(numbers), _which(numbers), check)

    @cached_property
    def sample(self) -> Dataset:
        return self.read(torch.linspace(0, self.num_data - 1, min(self.num_data, _SAMPLE)).long())

    def pieces(self, check: Check | None = None) -> Iterator[Dataset]:
        for numbers in torch.arange(self.num_data).split(PIECE):
            yield self.read(numbers, check)


def of_torch(dataset: Any, batch_size: int | None, missing: bool) -> Rows:
    """Rows of a torch Dataset, collated as in a DataLoader. Random numbers that it draws depend on the indices alone."""
    try:
        rows = len(dataset)
    except TypeError:
        raise TypeError(f"data must have a length, its number of rows; got {shown(dataset)} without __len__") from None
    if batch_size is None:
        raise ValueError(
            "batch_size must be a number of rows for a data set of torch, whose rows are read when they are needed; got "
            f"None for {rows} rows"
        )

    def read(numbers: Tensor) -> Any:
        chosen = numbers.tolist()
        with RandomStreams(mixed(numbers.numpy().tobytes())).current():
            some = dataset.__getitems__(chosen) if hasattr(dataset, "__getitems__") else [dataset[n] for n in chosen]
        return _collated(some, dataset)

    return Rows(read, rows, type(dataset).__name__, missing=missing)


def _collated(items: list[Any], dataset: Any) -> Any:
    """Collate items with ``default_collate``; an error if their keys differ, where it would use those of the first item."""
    kinds = {frozenset(item) for item in items if isinstance(item, Mapping)}
    if len(kinds) > 1:
        some = sorted(map(str, frozenset.union(*kinds) - frozenset.intersection(*kinds)))
        raise ValueError(
            f"the items of {type(dataset).__name__} must have the same keys in all rows; got {', '.join(some)} in some of "
            "them"
        )
    try:
        return default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"the items of {type(dataset).__name__} must be pairs or mappings of tensors, arrays and numbers, of one shape "
            f"in all rows; or pass a DataLoader with a collate_fn: {type(error).__name__}: {error}"
        ) from error


def of_files(x: Any, y: Any, values: Sequence[Any], missing: bool) -> Rows:
    """Rows of arrays, some of which are memory-mapped files, whose pages are released after reading."""
    arrays = [
        value if mapped_file(value) is not None else copied(tensor_of(value, "x or y", missing=missing), value)
        for value in values
    ]
    sizes = {len(value) for value in arrays}
    if len(sizes) != 1:
        raise ValueError(
            f"x and y must have one row per observation each; got {', '.join(map(str, sorted(sizes)))} rows"
        )
    files = {id(file): file for value in values if (file := mapped_file(value)) is not None}
    row = sum(max(_PAGES, value[:1].nbytes) for value in values if mapped_file(value) is not None)
    resident = 0

    def read(numbers: Tensor) -> Any:
        nonlocal resident
        rows = numbers.numpy()
        taken = [value[numbers if isinstance(value, Tensor) else rows] for value in arrays]
        resident += len(rows) * row
        if resident > _RESIDENT:
            for file in files.values() if hasattr(mmap, "MADV_DONTNEED") else ():
                file.madvise(mmap.MADV_DONTNEED)
            resident = 0
        *xs, last = taken
        if isinstance(x, Mapping):
            return dict(zip(x, xs, strict=True)), last
        return (tuple(xs) if isinstance(x, tuple) else xs[0]), last

    return Rows(read, sizes.pop(), "mapped files", missing=missing)


def mapped_file(values: Any) -> mmap.mmap | None:
    """The file that an array is mapped from, if its pages can be released; otherwise None."""
    mapped_from = isinstance(values, np.memmap) and values.mode != "c"
    while mapped_from and values is not None and not isinstance(values, mmap.mmap):
        values = values.base
    return values if isinstance(values, mmap.mmap) else None


def _which(numbers: Tensor) -> str:
    some = ", ".join(map(str, numbers[:5].tolist()))
    return f"the rows {some}{f' and {len(numbers) - 5} more' if len(numbers) > 5 else ''}"
