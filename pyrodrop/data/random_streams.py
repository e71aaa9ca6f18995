"""Random numbers of code that reads data, apart from those of the training.

A data set may draw from torch's, Python's and NumPy's global generators, to shuffle or to augment. Here it does so from
states of its own, which depend on a seed alone: what it draws does not change the noise of a training, and the other way
round.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class RandomStreams:
    """The states of the global generators for one reader of data.

    Args:
        own: further generators that the reader has, each with its seed.
    """

    def __init__(self, seed: int, own: Mapping[torch.Generator, int] | None = None) -> None:
        seeds = {torch.default_generator: seed, **(own or {})}
        self._generators = list(seeds)
        before = self._states()
        for generator, value in seeds.items():
            generator.manual_seed(value)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._mine = self._states()
        self._set(before)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have the generators in these states within the block, and in those of the caller afterwards."""
        before = self._states()
        self._set(self._mine)
        try:
            yield
        finally:
            self._mine = self._states()
            self._set(before)

    def _states(self) -> tuple[list[torch.Tensor], Any, Any]:
        return [generator.get_state() for generator in self._generators], random.getstate(), np.random.get_state()

    def _set(self, states: tuple[list[torch.Tensor], Any, Any]) -> None:
        for generator, state in zip(self._generators, states[0], strict=True):
            generator.set_state(state)
        random.setstate(states[1])
        np.random.set_state(states[2])


def mixed(*numbers: object) -> int:
    """A seed that differs where one of the numbers or words does."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")
