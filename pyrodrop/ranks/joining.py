"""How a process finds the others: torch's process group, or torchrun's environment."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from pyrodrop.arguments import flag
from pyrodrop.ranks.ranks import WAIT, Lost, Ranks, alone, first_line

_log = logging.getLogger("pyrodrop")

SAY_AFTER = 10.0  # seconds until the log says for whom it waits
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HOW = "start the program with torchrun --nproc-per-node W, or call torch.distributed.init_process_group"


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
                f"({first_line(error)}). All ranks must make the same call; a process that is to work alone passes "
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
