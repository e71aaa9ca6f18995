"""Minibatches of a data set, each epoch a fresh permutation of its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.stepper import Batch


class Minibatches:
    """A data set on a device, handed out as arguments of model and guide: x, y and, for a part of the rows, ``num_data``,
    how many it stands for."""

    def __init__(self, data: Dataset, size: int | None, device: torch.device) -> None:
        self.x, self.y = data.x.to(device), data.y.to(device)
        self.size = min(size or len(data), len(data))
        self.order = torch.empty(0, dtype=torch.long, device=device)
        self.position = 0

    @property
    def per_epoch(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-len(self.x) // self.size)

    def check(self, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        """Raise a ValueError if minibatches are asked for and model or guide cannot be told what they stand for."""
        for name, part in (("model", model), ("guide", guide)):
            if self.size < len(self.x) and not _takes_num_data(part):
                raise ValueError(
                    f"training on minibatches needs a {name} that can be told how many data they stand for, "
                    f"{name}(x, y, num_data=N); this one takes no num_data, so batch_size must be None or at least "
                    f"{len(self.x)}; got {self.size}"
                )

    def first(self) -> Batch:
        """A minibatch for a first look, which does not count."""
        return self._rows(slice(0, self.size))

    def next(self) -> Batch:
        """The next minibatch; the last of an epoch may be smaller."""
        if self.size == len(self.x):
            return self._rows(slice(None))
        if self.position >= len(self.order):
            self.order, self.position = torch.randperm(len(self.x), device=self.x.device), 0
        rows = self.order[self.position : self.position + self.size]
        self.position += self.size
        return self._rows(rows)

    def _rows(self, rows: slice | Tensor) -> Batch:
        kwargs = {} if self.size == len(self.x) else {"num_data": len(self.x)}
        return Batch(self.x[rows], self.y[rows], kwargs)


def _takes_num_data(part: Callable[..., Any]) -> bool:
    call = part.forward if isinstance(part, torch.nn.Module) else part
    accepted = inspect.signature(call).parameters.values()
    return any(p.name == "num_data" or p.kind is p.VAR_KEYWORD for p in accepted)
