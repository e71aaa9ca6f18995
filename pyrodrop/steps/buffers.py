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
from torch.distributions import Transform

from pyrodrop.module_states import Snapshot, modules_in, say_changes
from pyrodrop.modules import LocalModule

Place = tuple[nn.Module, str]


class Buffers:
    """The buffers of some modules that a step updates.

    Args:
        parts: model and guide; recording a graph leaves those that are modules unchanged.
        places: for every buffer, by name, the modules that have it, each with the buffer's name there.
    """

    def __init__(self, parts: Sequence[Any] = (), places: Mapping[str, Sequence[Place]] | None = None) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)
        self.places: dict[str, Sequence[Place]] = dict(places or {})

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


class Watch:
    """Records what calls within the block change in model and guide: ``with Watch(model, guide) as seen``.

    Attributes:
        moving: the buffers that have changed.
        changes: the Python attributes that have changed, as text; empty if none has.
    """

    moving: Buffers
    changes: str

    def __init__(self, model: Any, guide: Any) -> None:
        self.parts: tuple[Any, Any] = (model, guide)

    def __enter__(self) -> Watch:
        self.places: dict[str, list[Place]] = places_of(*self.parts)
        self._before = Snapshot(modules_of(*self.parts))
        return self

    def __exit__(self, *_: object) -> None:
        moved = {place for place in self._before.moved() if place[0]._buffers[place[1]] is not None}
        self.moving = Buffers(self.parts, {n: places for n, places in self.places.items() if places[0] in moved})
        caches = LocalModule, Transform  # whose attributes only cache results
        self.changes = say_changes([n for module, n in self._before.changed() if not isinstance(module, caches)])


def places_of(model: Any, guide: Any) -> dict[str, list[Place]]:
    """Every buffer of model and guide by name, with the modules that have it."""
    places: dict[int, tuple[str, list[Place]]] = {}
    for prefix, module in modules_of(model, guide).items():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                places.setdefault(id(buffer), (f"{prefix}.{name}", []))[1].append((module, name))
    return dict(places.values())


def modules_of(model: Any, guide: Any) -> dict[str, nn.Module]:
    """Every module of model and guide once, by name."""
    seen: set[nn.Module] = set()
    modules: dict[str, nn.Module] = {}
    for role, program in (("model", model), ("guide", guide)):
        for name, module in modules_in(program, role).items():
            modules |= dict(module.named_modules(seen, prefix=name))
    return modules
