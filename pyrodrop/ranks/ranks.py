"""The processes that train together, what they tell each other, and whether they have the same tensors."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WAIT = timedelta(minutes=30)  # for the other ranks: one may have to load data, compile, or evaluate in after_epoch
_SHOWN = 4  # differences in a message


class Lost(RuntimeError):
    """The ranks cannot reach each other any more."""


class StoppedElsewhere(RuntimeError):
    """An exception has stopped another rank."""


@dataclass
class Ranks:
    """The processes that train together, seen from one of them; alone if there is one.

    Attributes:
        rank: the number of this process.
        size: W, the number of processes.
        backend: of gradients: ``gloo`` or ``nccl``; empty if alone.
        device: of this process.
    """

    rank: int
    size: int
    backend: str
    device: torch.device
    _control: Any = None
    _gradients: Any = None
    _told: BaseException | None = None

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._exchanged(lambda: dist.all_gather_object(values, value, group=self._control))
        return values

    def of_first(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        if self.size == 1:
            return value
        held = [value if self.first else None]
        self._exchanged(lambda: dist.broadcast_object_list(held, 0, group=self._control, device=torch.device("cpu")))
        return held[0]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors, in place, the values that they have on rank 0. Shapes and dtypes must be equal."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                plain = tensor.detach().to("cpu", copy=True).contiguous()
                if plain.numel():
                    self._exchanged(
                        functools.partial(dist.broadcast, plain.flatten().view(torch.uint8), 0, self._control)
                    )
                if not self.first:
                    tensor.copy_(plain)

    def joined(self, value: Tensor, axis: int) -> Tensor:
        """The tensors of all ranks one after the other along an axis, on every rank."""
        if self.size == 1:
            return value
        tensors = []
        for rank, shape in enumerate(self.gather(value.shape)):
            tensor = value.cpu().contiguous() if rank == self.rank else torch.empty(shape, dtype=value.dtype)
            if tensor.numel():
                self._exchanged(
                    functools.partial(dist.broadcast, tensor.flatten().view(torch.uint8), rank, self._control)
                )
            tensors.append(tensor)
        return torch.cat(tensors, axis).to(value.device)

    def agree(self, words: Mapping[str, str], what: str) -> None:
        """Raise the same ValueError on every rank, unless these words are the same on all of them.

        Args:
            words: by the name of what they say, such as ``{"seed": "0"}``.
            what: that must be the same, for the message.
        """
        told = self.gather(dict(words))
        differ = [
            f"{name} is {told[0].get(name, 'absent')} on rank 0 and {other.get(name, 'absent')} on rank {rank}"
            for rank, other in enumerate(told)
            for name in {**told[0], **other}
            if other.get(name) != told[0].get(name)
        ]
        if differ:
            more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
            raise ValueError(
                f"{what} must be the same on all {self.size} ranks: {'; '.join(differ[:_SHOWN])}{more}. Processes that are "
                "to work alone pass distributed=False"
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """An exception of one rank within the block stops all ranks: the others raise `StoppedElsewhere`, which names it.

        The block itself must not wait for other ranks.
        """
        if self.size == 1:
            yield
            return
        try:
            yield
        except Exception as error:
            self._told = error
            with suppress(Lost):
                self.gather(words_of(error))
            raise
        self.check(self.gather(None))

    def check(self, stopped: list[str | None]) -> None:
        """Raise `StoppedElsewhere` if one of the ranks, which have told by what they were stopped, is not this one."""
        others = [f"rank {rank} stopped with {words}" for rank, words in enumerate(stopped) if words is not None]
        if others:
            raise StoppedElsewhere(f"{'; '.join(others)}. So rank {self.rank} stops, too")

    def sum(self, values: Tensor) -> None:
        """Replace values on the device, in place, by their sum over the ranks."""
        self._exchanged(lambda: dist.all_reduce(values, group=self._gradients))

    def _exchanged(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except RuntimeError as error:
            raise Lost(
                f"rank {self.rank} of {self.size} has lost the others: one of them was ended, or has not made the same call "
                f"of pyrodrop within {WAIT.seconds // 60} minutes, as every rank must ({first_line(error)})"
            ) from error


def alone(device: torch.device) -> Ranks:
    """This process as the only one."""
    return Ranks(0, 1, "", device)


def words_of(error: BaseException) -> str:
    """An error in words for the other ranks."""
    return f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """The first line of an error of PyTorch, which may have many."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def tensors_of(*parts: object) -> list[Tensor]:
    """The parameters and buffers of model and guide, as far as they are modules."""
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return [value for module in modules for value in (*module.parameters(), *module.buffers())]


def digest(values: Iterable[Tensor]) -> str:
    """A few digits that are the same for tensors of the same bytes."""
    hashed = hashlib.blake2b(digest_size=8)
    for value in values:
        hashed.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
