"""Devices, seeds and floating-point settings."""

from __future__ import annotations

import functools
import math
import platform
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from pyrodrop.checks import shown
from pyrodrop.threads import exclusive

_CALLS = 3  # repetitions of a call, to distinguish its random draws from those of other threads


def resolve(device: str | torch.device) -> torch.device:
    """Turn a device name into an available device; ``"auto"`` is the GPU if there is one, otherwise the CPU.

    Raises:
        TypeError: it is neither a str nor a `torch.device`.
        ValueError: this machine has no such device.
    """
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:0', a str or torch.device; got {shown(device)}")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpus = torch.cuda.device_count()
    try:
        chosen = torch.device(device)
        exists = chosen.type == "cpu" or (chosen.type == "cuda" and (chosen.index or 0) < gpus)
    except RuntimeError:
        exists = False
    if not exists:
        known = ", ".join(["auto", "cpu", *(f"cuda:{i}" for i in range(gpus))])
        raise ValueError(f"device must be one of {known} on this machine; got {device!r}")
    return chosen


@functools.cache
def processor() -> str:
    """Model name of this machine's processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators within the block and restore the caller's generators afterwards.

    Other threads of pyrodrop wait for the block to end.
    """
    on_gpu = device.type == "cuda"
    with exclusive(), torch.random.fork_rng([device] if on_gpu else []):
        (torch.manual_seed if on_gpu else torch.default_generator.manual_seed)(
            seed
        )  # the first would seed every device
        yield


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators of the CPU and of the device, by kind."""
    cpu = {"cpu": torch.get_rng_state()}
    return cpu | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else cpu


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the states of torch's generators of the CPU and of the device."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def outside_torch() -> tuple[Any, ...]:
    """States of the generators of Python and NumPy."""
    _, keys, *rest = np.random.get_state(legacy=True)
    # with the normal number that NumPy keeps for the next call
    return random.getstate(), keys.tobytes(), *rest  # type: ignore[union-attr]


def has_drawn(before: Any, call: Callable[[], object], states: Callable[[], Any] = outside_torch) -> bool:
    """Whether a call that was just made drew random numbers: from generators whose `states` were `before`.

    Another thread may have drawn them, such as the event loop of a Dask worker (twice a second). So if the states changed,
    the call is repeated up to three times; the result is False as soon as a repetition leaves the states unchanged.
    """
    for _ in range(_CALLS):
        after = states()
        if after == before:
            return False
        before = after
        call()
    return states() != before  # type: ignore[no-any-return]


def made_on(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the default for new tensors within the block, such as those that a Pyro program makes of numbers."""
    return nullcontext() if device.type == torch.empty(0).device.type == "cpu" else torch.device(device)


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush denormal numbers to 0 on this thread within the block, and restore the setting afterwards.

    Weights that only their prior acts on decay to denormal values, with which a CPU computes many times slower.
    """
    before = float(torch.full((), torch.finfo(torch.float32).tiny) / 8) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def products_of_float32() -> Iterator[None]:
    """Have CUDA kernels compute products of float32 in float32 within the block; CPUs are unaffected.

    PyTorch's default is TensorFloat-32 for convolutions and recurrent layers.
    """
    backends: Any = torch.backends
    owners = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before = [owner.fp32_precision for owner in owners]
    try:
        for owner in owners:
            owner.fp32_precision = "ieee"
        yield
    finally:
        for owner, old in zip(owners, before, strict=True):
            owner.fp32_precision = old


def available(device: torch.device) -> float:
    """Available memory of the device in bytes, including memory that the system can reclaim.

    In a container with a memory limit (cgroup v2), at most the limit minus the memory in use, cached files not counted.
    """
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return min(float(psutil.virtual_memory().available), _of_container(Path("/sys/fs/cgroup")))


def _of_container(folder: Path) -> float:
    """The memory that a container may still use, which psutil does not know; infinite if there is no limit."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no container, or one with the limit "max"
        return math.inf
    return max(0.0, limit - used + (int(cached[1]) if cached else 0))
