"""The buffers that a step updates in addition to parameters, such as running statistics and counters.

In training mode nn.BatchNorm updates its running statistics in place at every call. A graph must do the same, so the buffers
that a call updates are inputs of the graph, and their new values are outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.changes import Look, places_of

Place = tuple[nn.Module, str]


class Buffers:
    """The buffers of some modules that a step updates.

    Args:
        parts: model and guide; recording a graph leaves them unchanged.
        places: for every buffer, by name, the modules that have it, each with the buffer's name there.
    """

    def __init__(self, parts: Sequence[Any] = (), places: Mapping[str, Sequence[Place]] | None = None) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)
        self.places: dict[str, Sequence[Place]] = dict(places or {})

    @classmethod
    def moved(cls, look: Look, *parts: Any) -> Buffers:
        """The buffers of model and guide that calls within a block of `put_back` have changed."""
        moved = set(look.moved)
        return cls(parts, {name: places for name, places in places_of(*parts).items() if places[0] in moved})

    def __len__(self) -> int:
        return len(self.places)

    def tensors(self) -> list[Tensor]:
        """The buffers, by reference."""
        return [module._buffers[name] for (module, name), *_ in self.places.values()]  # type: ignore[misc]

    def named(self) -> dict[str, Tensor]:
        """The buffers by name, by reference."""
        return dict(zip(self.places, self.tensors(), strict=True))

    def take(self, values: Sequence[Tensor]) -> None:
        """Set the buffers to these values, in place."""
        with torch.no_grad():
            for buffer, value in zip(self.tensors(), values, strict=True):
                buffer.copy_(value)

    @contextmanager
    def replaced(self, values: Sequence[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Replace the buffers by other tensors, which calls then update; yields a function that returns the updated ones."""
        before = self.tensors()
        self._put(values)
        try:
            yield self.tensors
        finally:
            self._put(before)

    def _put(self, values: Sequence[Tensor]) -> None:
        for places, value in zip(self.places.values(), values, strict=True):
            for module, name in places:
                module._buffers[name] = value
