"""What a step moves beside the parameters: buffers, such as running statistics and counters.

In training mode nn.BatchNorm moves its running statistics in place at every call. A graph must do the same, so the buffers
that a call moves are inputs of it, and their new values are outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.modules import LocalModule
from pyrodrop.networks.modes import attributes_of, changed_attributes

Place = tuple[nn.Module, str]


class Moving:
    """The buffers of some modules that a step moves.

    Args:
        parts: model and guide; those that are modules are left as they were by a trace.
        places: by the buffer's name, every module that holds it, with its name there.
    """

    def __init__(self, parts: Sequence[Any] = (), places: Mapping[str, Sequence[Place]] | None = None) -> None:
        self.parts = tuple(parts)
        self.places = dict(places or {})

    def __len__(self) -> int:
        return len(self.places)

    def tensors(self) -> list[Tensor]:
        """Their values, by reference."""
        return [module._buffers[name] for (module, name), *_ in self.places.values()]  # type: ignore[misc]

    def named(self) -> dict[str, Tensor]:
        """Their values by name, by reference."""
        return dict(zip(self.places, self.tensors(), strict=True))

    def take(self, values: Sequence[Tensor]) -> None:
        """Give them these values, in place."""
        with torch.no_grad():
            for own, value in zip(self.tensors(), values, strict=True):
                own.copy_(value)

    @contextmanager
    def replaced(self, values: Sequence[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Other tensors in their places, which calls then move; a call of what is yielded gives what has become of them."""
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
    """What calls change in model and guide while the block lasts: ``with Watch(model, guide) as seen``.

    Attributes:
        moving: the buffers that have moved.
        changes: the Python attributes that have changed, as words; empty if none has.
    """

    moving: Moving
    changes: str

    def __init__(self, model: Any, guide: Any) -> None:
        self.parts = (model, guide)
        self.places = places_of(model, guide)

    def __enter__(self) -> Watch:
        self._buffers = {name: module._buffers[own] for name, ((module, own), *_) in self.places.items()}
        self._values = {name: (buffer._version, buffer.detach().clone()) for name, buffer in self._buffers.items()}  # type: ignore[union-attr]
        modules = {
            n: m for n, m in _modules(*self.parts).items() if not isinstance(m, LocalModule)
        }  # ours keep what they found
        self._attributes = {name: (module, attributes_of(module)) for name, module in modules.items()}
        return self

    def __exit__(self, *_: object) -> None:
        self.moving = Moving(self.parts, {n: places for n, places in self.places.items() if self._moved(n, places)})
        changed = [
            f"{name}.{attribute}"
            for name, (module, before) in self._attributes.items()
            for attribute in changed_attributes(module, before)
        ]
        self.changes = f"its forward changes the attributes {', '.join(changed)}" if changed else ""

    def _moved(self, name: str, places: Sequence[Place]) -> bool:
        module, own = places[0]
        (version, value), now = self._values[name], module._buffers[own]
        if now is None or now is not self._buffers[name]:
            return now is not None
        return now._version != version or not torch.equal(now, value)


def places_of(model: Any, guide: Any) -> dict[str, list[Place]]:
    """Every buffer of model and guide by name, with the modules that hold it."""
    found: dict[int, tuple[str, list[Place]]] = {}
    for prefix, module in _modules(model, guide).items():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                found.setdefault(id(buffer), (f"{prefix}.{name}", []))[1].append((module, name))
    return dict(found.values())


def _modules(model: Any, guide: Any) -> dict[str, nn.Module]:
    """Every module of model and guide once, by name."""
    seen: set[nn.Module] = set()
    found: dict[str, nn.Module] = {}
    for role, part in (("model", model), ("guide", guide)):
        if isinstance(part, nn.Module):
            found |= dict(part.named_modules(seen, prefix=role))
    return found
