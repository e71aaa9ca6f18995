"""The processes that train one model together: ranks 0 to W - 1 of the default process group of `torch.distributed`.

Every rank must make the same calls in the same order. If a rank fails, `torchrun` ends the job, and the other ranks raise
torch's error of a lost connection.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, seen from one of them; alone if there is one.

    Attributes:
        rank: the number of this process.
        size: W, the number of processes.
        device: of this process.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def of_first(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        if self.size == 1:
            return value
        values = [value if self.first else None]
        dist.broadcast_object_list(values, 0, device=self.device)
        return values[0]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors, in place, the values that they have on rank 0."""
        if self.size > 1:
            tensors = list(tensors)
            copies = [tensor.detach().to("cpu", copy=True) for tensor in tensors] if self.first else None
            with torch.no_grad():
                for tensor, value in zip(tensors, self.of_first(copies), strict=True):
                    tensor.copy_(value)

    def mean(self, values: Tensor) -> None:
        """Replace values, in place, by their mean over the ranks."""
        dist.all_reduce(values)
        values /= self.size

    def check_same(self, words: Mapping[str, str]) -> None:
        """Raise a ValueError on a rank whose descriptions, by name, differ from those of rank 0."""
        there = self.of_first(dict(words))
        names = [name for name in {**there, **words} if there.get(name) != words.get(name)]
        if names:
            differences = "; ".join(
                f"{name} is {words.get(name, 'absent')} here and {there.get(name, 'absent')} on rank 0"
                for name in names[:4]
            )
            raise ValueError(
                f"model, guide, data and arguments must be the same on all {self.size} ranks; got on rank {self.rank}: "
                f"{differences}. Processes that are to train alone pass distributed=False"
            )

    def noise_seed(self, seed: int, steps: int = 0) -> int:
        """The seed of this rank's noise in a training that continues after `steps` steps; on rank 0, the training's seed."""
        if self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.rank, steps]).generate_state(1, np.uint64)[0] >> 1)


def alone(device: torch.device) -> Ranks:
    """This process as the only one."""
    return Ranks(0, 1, device)


def join(distributed: bool | None, device: torch.device) -> Ranks:
    """The processes that train together with this one, which all call this function.

    Args:
        distributed: None for the processes of torch's default process group, or those that torchrun has started; False for
            this process alone; True as None, but an error if there are neither.
        device: the requested device; ``cuda`` without a number becomes the GPU of the local rank.

    Raises:
        ValueError: True without a group or torchrun; more local ranks than GPUs; a group without a backend for the device.
    """
    made = dist.is_available() and dist.is_initialized()
    launched = dist.is_available() and dist.is_torchelastic_launched() and os.environ.get("WORLD_SIZE", "1") != "1"
    if distributed and not made and not launched:
        raise ValueError(
            "distributed=True needs several ranks; got True in a process that is alone: start the program with "
            "torchrun --nproc-per-node W, or call torch.distributed.init_process_group"
        )
    if distributed is False or not (made or launched):
        return alone(device)
    device = _local(device)
    if not made:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        atexit.register(_end)
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), device)
    backends = dist.get_backend_config()
    if ranks.size > 1 and f"{device.type}:" not in backends:
        raise ValueError(
            f"the process group must have a backend for the device, {device.type}, such as gloo for cpu and nccl for cuda; "
            f"got one with {backends}: pass another device, or distributed=False to train alone"
        )
    return ranks


def _local(device: torch.device) -> torch.device:
    """The device; for ``cuda`` without a number, the GPU of the local rank that a launcher has set."""
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


def _end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
