"""Data that are read a minibatch at a time: rows by index, or the minibatches of a loader.

A minibatch is a pair (x, y), where x may be a tuple or mapping of tensors; or it is a mapping that contains y under one of
the names in `TARGETS`. Values are checked when they are read.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.data.dataset import Dataset
from pyrodrop.inputs import named_parts, parts, rebuilt

Check = Callable[[Dataset], None]  # raises a ValueError for rows that a model does not allow
BLOCK = 5000  # rows that are evaluated at a time
_BLOCK_BYTES = 16 * 2**20  # most bytes of x in a block, unless one minibatch has more
TARGETS = ("y", "label", "labels", "target", "targets")


class Streamed(ABC):
    """Data that are read a minibatch at a time.

    Attributes:
        source: a short description of what is read, for messages.
        missing: whether y may have missing values.
        num_data: number of rows; None if it is unknown.
        shuffles: whether `pieces` yields the rows in another order than the data set's.
        first_row: reads the first row; None if rows cannot be read by index, or reading draws no random numbers.
    """

    source: str
    missing: bool
    num_data: int | None
    shuffles = False
    first_row: Callable[[], Any] | None = None
    _form: dict[str, str] | None = None  # dtype and number of axes of each tensor of the rows that were read first

    def __len__(self) -> int:
        if self.num_data is None:
            raise TypeError(f"the number of rows of {self.source} is not known")
        return self.num_data

    @cached_property
    @abstractmethod
    def sample(self) -> Dataset:
        """Some rows, the same at every call, from which shapes and dtypes are inferred."""

    @abstractmethod
    def pieces(self, check: Check | None = None) -> Iterator[Dataset]:
        """Iterate over all rows, a few at a time, the same at every call."""

    def blocks(self, check: Check | None = None) -> Iterator[Dataset]:
        """`pieces`, with consecutive ones of equal shapes joined to blocks of at most `BLOCK` rows and 16 MiB of x."""
        waiting: list[Dataset] = []
        for piece in self.pieces(check):
            size = sum(tensor[0].nbytes for tensor in parts(piece.x))
            most = max(1, min(BLOCK, _BLOCK_BYTES // max(1, size)))
            if waiting and (_shapes(piece) != _shapes(waiting[0]) or sum(map(len, waiting)) + len(piece) > most):
                yield _joined(waiting)
                waiting = []
            waiting.append(piece)
        if waiting:
            yield _joined(waiting)

    fingerprint = None  # unknown, as it would need all rows

    @cached_property
    def outline(self) -> str:
        """Hash of the number of rows and of the sample. Data that differ only in other rows have the same outline."""
        text = f"{self.num_data} rows, of which a sample is {self.sample.fingerprint}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def words(self) -> dict[str, str]:
        """The source of the data, for the settings of a fit."""
        return {"data_source": self.source}

    def checked(self, batch: Any, where: str, check: Check | None) -> Dataset:
        """A minibatch as a checked data set; errors name `where`, the place of the minibatch."""
        try:
            rows = self._alike(Dataset.of(pair_of(batch), missing=self.missing))
            if check is not None:
                check(rows)
            return rows
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where} of {self.source}: {error}") from error

    def _alike(self, rows: Dataset) -> Dataset:
        """The rows, with the tensors of a mapping in the order of the rows that were read first.

        Raises:
            TypeError: names, numbers of axes or dtypes of the tensors differ from the first rows': a recorded step is fixed.
        """
        form = {name: f"{tensor.dtype} of {tensor.dim()} axes" for name, tensor in named_parts(rows.x).items()}
        form["y"] = f"{rows.y.dtype} of {rows.y.dim()} axes"
        self._form = self._form or form
        if form != self._form:
            name = next(key for key in {**self._form, **form} if form.get(key) != self._form.get(key))
            raise TypeError(
                f"rows must have the tensors of those that were read first, of one dtype each: {name} was "
                f"{self._form.get(name, 'not there')}; got {form.get(name, 'none')}"
            )
        if isinstance(rows.x, dict):
            rows.x = {name: rows.x[name] for name in (key.removeprefix("x_") for key in self._form if key != "y")}
        return rows


def _shapes(rows: Dataset) -> list[Any]:
    return [tensor.shape[1:] for tensor in (*parts(rows.x), rows.y)]


def _joined(pieces: list[Dataset]) -> Dataset:
    """Pieces of equal shapes as one data set."""
    if len(pieces) == 1:
        return pieces[0]
    tensors = [torch.cat(each) for each in zip(*(parts(piece.x) for piece in pieces), strict=True)]
    return Dataset(rebuilt(pieces[0].x, tensors), torch.cat([piece.y for piece in pieces]))


def pair_of(batch: Any) -> tuple[Any, Any]:
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


class RandomStreams:
    """States of the global random generators for a reader of data, separate from those of training.

    A data set may draw from torch's, Python's and NumPy's global generators, to shuffle or to augment. Here it does so from
    states that depend on a seed alone: its draws do not change the noise of training, nor does training change its draws.

    Args:
        generators: further generators that the reader uses, each with its seed.
    """

    def __init__(self, seed: int, generators: Mapping[torch.Generator, int] | None = None) -> None:
        seeds = {torch.default_generator: seed, **(generators or {})}
        self._generators = list(seeds)
        before = self._states()
        for generator, value in seeds.items():
            generator.manual_seed(value)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._state = self._states()
        self._set(before)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Set the generators to these states within the block, and restore the caller's afterwards."""
        before = self._states()
        self._set(self._state)
        try:
            yield
        finally:
            self._state = self._states()
            self._set(before)

    def _states(self) -> tuple[list[torch.Tensor], Any, Any]:
        return [generator.get_state() for generator in self._generators], random.getstate(), np.random.get_state()

    def _set(self, states: tuple[list[torch.Tensor], Any, Any]) -> None:
        for generator, state in zip(self._generators, states[0], strict=True):
            generator.set_state(state)
        random.setstate(states[1])
        np.random.set_state(states[2])


def mixed(*numbers: object) -> int:
    """A seed that depends on all of the numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")
