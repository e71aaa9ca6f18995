"""The processes that train one model together: ranks 0 to W - 1 of `torch.distributed`.

Ranks exchange tensors through groups of their own, which no collective call of a user meets: a group of gloo, and on GPUs
one of nccl for gradients. Every rank must make the same calls in the same order. What can fail on one rank alone happens
within `Ranks.together` or `Averaging.stopping`, which tell the others, so that all of them stop with an error instead of
waiting.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pyrodrop.arguments import flag

_log = logging.getLogger("pyrodrop")

WAIT = timedelta(minutes=30)  # for the other ranks: one may have to load data, compile, or evaluate in after_epoch
SAY_AFTER = 10.0  # seconds until the log says for whom it waits
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SHOWN = 4  # differences in a message
_HOW = "start the program with torchrun --nproc-per-node W, or call torch.distributed.init_process_group"
_STOPPED = 2.0  # flag of a rank that an exception has stopped; 1 is that of a gradient that is not finite


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
        found: list[Any] = [None] * self.size
        self._exchanged(lambda: dist.all_gather_object(found, value, group=self._control))
        return found

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
        found = []
        for rank, shape in enumerate(self.gather(value.shape)):
            own = value.cpu().contiguous() if rank == self.rank else torch.empty(shape, dtype=value.dtype)
            if own.numel():
                self._exchanged(functools.partial(dist.broadcast, own.flatten().view(torch.uint8), rank, self._control))
            found.append(own)
        return torch.cat(found, axis).to(value.device)

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
                self.gather(_words(error))
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
                f"of pyrodrop within {WAIT.seconds // 60} minutes, as every rank must ({_first_line(error)})"
            ) from error


def digest(values: Iterable[Tensor]) -> str:
    """A few digits that are the same for tensors of the same bytes."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Averaging:
    """Replaces the gradient of a step by its mean over the ranks, and tells them what stops one.

    One all-reduce carries the gradient and a flag per rank. Every exchange of a training is one of these or comes after one
    (`pulse`), so a rank that an exception stops knows where the others are: at their next one.

    On a GPU the flags are not read at every step, which would wait for the device: there an exception on one rank ends in
    `Lost` on the others, when its process ends or after `WAIT`.

    Args:
        ranks: of the training.
        values: tensors whose elements a gradient has, in number and dtype.
    """

    def __init__(self, ranks: Ranks, values: Iterable[Tensor]) -> None:
        self.ranks = ranks
        like = torch.cat([value.detach().flatten() for value in values])
        self._buffer = like.new_zeros(like.numel() + ranks.size)
        self._flags = self._buffer[like.numel() :]
        self._reads = like.device.type == "cpu"
        self.steps = 0
        self._first = torch.full((ranks.size,), torch.inf, dtype=torch.float64, device=like.device)

    def __call__(self, flat: Tensor) -> None:
        own = self._buffer[: flat.numel()]
        own.copy_(flat)
        self._flags.zero_()
        self._flags[self.ranks.rank] = ~torch.isfinite(flat.sum())
        if self._exchange():
            self._first = torch.where(self._flags > 0, self._first.clamp(max=self.steps), self._first)
        self.steps += 1
        flat.copy_(own.div_(self.ranks.size))

    def pulse(self) -> None:
        """Wait for the others; `StoppedElsewhere` if one of them has stopped."""
        self._buffer.zero_()
        self._exchange()

    def broken(self) -> list[tuple[int, int]]:
        """How many steps ago a rank's own gradient or loss was not finite for the first time, with the number of the rank,
        for those ranks that were the first."""
        first = self._first.tolist()
        least = min(first)
        return [] if least == torch.inf else [(self.steps - int(least), r) for r, at in enumerate(first) if at == least]

    def forget(self) -> None:
        """Forget which ranks were not finite, as after a state was loaded."""
        self._first.fill_(torch.inf)

    @contextmanager
    def stopping(self, *, closing: bool) -> Iterator[None]:
        """An exception of one rank within the block, outside of `Ranks.together`, stops all ranks.

        Args:
            closing: whether to wait at the end of the block until all ranks have come there.
        """
        try:
            yield
        except (Lost, StoppedElsewhere):
            raise
        except Exception as error:
            if error is not self.ranks._told and self._reads:
                self._stop(error)
            raise
        if closing:
            self.pulse()

    def _stop(self, error: Exception) -> None:
        """Tell the other ranks."""
        self._buffer.zero_()
        self._flags[self.ranks.rank] = _STOPPED
        with suppress(Lost):
            self.ranks.sum(self._buffer)
            self.ranks.gather(_words(error))

    def _exchange(self) -> bool:
        """Sum over the ranks; returns whether there may be a flag of a gradient that is not finite."""
        self.ranks.sum(self._buffer)
        if not self._reads:
            return True
        flag = float(self._flags.max())
        if flag >= _STOPPED:
            self.ranks.check(self.ranks.gather(None))
        return flag > 0


def join(distributed: bool | None, device: torch.device) -> Ranks:
    """The processes that train together with this one, which all call this function.

    Args:
        distributed: None for those of torch's default process group, or those that torchrun has started; False for this
            process alone; True to insist on a process group.
        device: that is asked for; ``cuda`` without a number becomes that of the local rank.

    Raises:
        ValueError: True where there is no group; two ranks on one GPU, or more than there are.
        Lost: the others do not come.
    """
    if distributed is False:
        return alone(device)
    made = dist.is_available() and dist.is_initialized()
    if not made and not _launched(bool(distributed)):
        if distributed:
            raise ValueError(f"distributed=True needs several ranks; got True in a process that is alone: {_HOW}")
        return alone(device)
    device = _local(device)
    if not made:
        _initialise(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return alone(device)
    with _waiting(rank, size):
        return _groups.of(rank, size, device)


def tensors_of(*parts: object) -> list[Tensor]:
    """The parameters and buffers of model and guide, as far as they are modules."""
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return [value for module in modules for value in (*module.parameters(), *module.buffers())]


def alone(device: torch.device) -> Ranks:
    """This process as the only one."""
    return Ranks(0, 1, "", device)


def asked(distributed: Any) -> bool | None:
    """Whether ranks share the work of a call: True, False, or None for "if there are several"; otherwise a TypeError."""
    what = "whether several ranks share the work, where it is not None,"
    return None if distributed is None else flag(distributed, "distributed", what)


class _Groups:
    """The groups of this process, made once for every default group of torch."""

    def __init__(self) -> None:
        self._world: Any = None
        self._control: Any = None
        self._nccl: Any = None

    def of(self, rank: int, size: int, device: torch.device) -> Ranks:
        nccl = device.type == "cuda" and dist.is_nccl_available()
        try:
            if self._world is not dist.group.WORLD:
                control = dist.new_group(backend="gloo", timeout=WAIT)
                self._world, self._control, self._nccl = dist.group.WORLD, control, None
            ranks = Ranks(rank, size, "nccl" if nccl else "gloo", device, self._control)
            ranks.agree(
                {"device": device.type, "torch": torch.__version__}, "the kind of device and the version of torch"
            )
            if nccl:
                _check_gpus(ranks.gather((socket.gethostname(), _number(device))))
                self._nccl = self._nccl or dist.new_group(backend="nccl", timeout=WAIT)
        except (dist.DistError, RuntimeError) as error:
            if isinstance(error, Lost):
                raise
            raise Lost(
                f"rank {rank} of {size} has not met the others within {WAIT.seconds // 60} minutes, or they have ended "
                f"({_first_line(error)}). All ranks must make the same call; a process that is to work alone passes "
                "distributed=False"
            ) from error
        ranks._gradients = self._nccl if nccl else self._control
        return ranks


_groups = _Groups()


def _launched(asked: bool) -> bool:
    """Whether torchrun has started this process as one of several; or, where it is asked for, any launcher."""
    several = os.environ.get("WORLD_SIZE", "1") not in ("", "1") and all(name in os.environ for name in _LAUNCHER)
    return dist.is_available() and several and (asked or dist.is_torchelastic_launched())


def _local(device: torch.device) -> torch.device:
    """The device; of the local rank that a launcher has set, if it is a GPU without a number."""
    number = os.environ.get("LOCAL_RANK", "")
    if device.type != "cuda" or device.index is not None or not number.isdecimal():
        return device
    count = torch.cuda.device_count()
    if int(number) >= count:
        raise ValueError(
            f"every rank needs a GPU of its own, and this machine has {count}: start at most so many ranks here, or pass "
            f"device='cpu'; got local rank {number}"
        )
    return torch.device("cuda", int(number))


def _initialise(device: torch.device) -> None:
    """Make torch's default group of the processes of a launcher."""
    backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _waiting(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])):
        dist.init_process_group(backend, timeout=WAIT)
    atexit.register(_end)


def _end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _waiting(rank: int, size: int) -> Iterator[None]:
    """Say in the log that this rank waits for the others, if they do not come soon."""
    words = (
        "rank %d waits for the other %d rank(s) to make the same call; a process that is to work alone passes "
        "distributed=False"
    )
    timer = threading.Timer(SAY_AFTER, _log.warning, (words, rank, size - 1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_gpus(places: list[tuple[str, int]]) -> None:
    """Raise a ValueError for two ranks on one GPU, with which nccl does not work."""
    for rank, place in enumerate(places):
        if place in places[:rank]:
            raise ValueError(
                f"every rank needs a GPU of its own; got GPU {place[1]} of {place[0]} for the ranks {places.index(place)} "
                f"and {rank}: call torch.cuda.set_device, or pass another device on every rank"
            )


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
