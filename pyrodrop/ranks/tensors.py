"""The tensors of a model and a guide, and whether two ranks have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def tensors_of(*parts: object) -> list[Tensor]:
    """The parameters and buffers of model and guide, as far as they are modules."""
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return [value for module in modules for value in (*module.parameters(), *module.buffers())]


def digest(values: Iterable[Tensor]) -> str:
    """A few digits that are the same for tensors of the same bytes."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
