"""Data that are read a minibatch at a time: rows by their numbers, or whatever a loader yields.

A minibatch is a pair (x, y), where x may be a tuple or mapping of tensors, or a mapping that has y as well, under one of the
names in `TARGETS`. Values are checked when they are read: of data that were never read nothing is known.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.random_streams import RandomStreams
from pyrodrop.inputs import parts, tensors_in

Check = Callable[[Dataset], None]  # raises a ValueError for rows that a model does not allow
TARGETS = ("y", "label", "labels", "target", "targets")


class Streamed(ABC):
    """Data that are read a minibatch at a time.

    Attributes:
        num_data: number of rows; None where it is not known.
        shuffles: whether `pieces` are in another order than the rows.
    """

    missing: bool
    num_data: int | None
    shuffles = False

    def __len__(self) -> int:
        if self.num_data is None:
            raise TypeError(f"the number of rows of {self.source} is not known")
        return self.num_data

    @property
    @abstractmethod
    def source(self) -> str:
        """What is read, in a few words."""

    @cached_property
    @abstractmethod
    def sample(self) -> Dataset:
        """Some rows, the same at every call, from which shapes and dtypes are known."""

    @abstractmethod
    def pieces(self, check: Check | None = None) -> Iterator[Dataset]:
        """All rows, some at a time; the same at every call."""

    @abstractmethod
    def twice(self) -> tuple[Any, Any] | None:
        """The first row, read with two seeds; None where rows cannot be read by number."""

    fingerprint = None  # what was not read has none

    @cached_property
    def outline(self) -> str:
        """Hash of the number of rows and of the sample: other data with the same ones have the same outline."""
        words = f"{self.num_data} rows, of which a sample is {self.sample.fingerprint}"
        return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    @cached_property
    def words(self) -> dict[str, str]:
        """Where the data are from, for the settings of a fit, and whether every reading draws an augmentation."""
        read = self.twice()
        if read is None or same(*read):
            return {"data_source": self.source}
        return {"data_source": self.source, "augmentation": "random: a row is another x at every reading"}

    def checked(self, batch: Any, where: str, check: Check | None) -> Dataset:
        """A minibatch as a data set; an error says which one is wrong."""
        try:
            rows = Dataset.of(pair_of(batch), missing=self.missing)
            if check is not None:
                check(rows)
            return rows
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where} of {self.source}: {error}") from error


def pair_of(batch: Any) -> tuple[Any, Any]:
    """x and y of a minibatch.

    Raises:
        TypeError: it is neither a pair nor a mapping with one entry of y.
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
    return (tuple(x) if isinstance(x, list) and any(isinstance(part, Tensor) for part in x) else x), y


def seeded_twice(read: Callable[[], Any]) -> tuple[Any, Any]:
    """What is read with two seeds."""
    found = []
    for seed in (0, 1):
        with RandomStreams(seed).current():
            found.append(read())
    return found[0], found[1]


def same(one: Any, two: Any) -> bool:
    """Whether two rows or minibatches have the same tensors."""
    first, second = ([*parts(v.x), v.y] if isinstance(v, Dataset) else tensors_in(v) for v in (one, two))
    return len(first) == len(second) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a != a) & (b != b)).all())
        for a, b in zip(first, second, strict=True)
    )
