"""Devices, seeds and floating-point settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pyrodrop.arguments import shown
from pyrodrop.threads import drawing


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
    known = ", ".join(["auto", "cpu", *(f"cuda:{i}" for i in range(gpus))])
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be one of {known}; got {device!r}") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= gpus:
        raise ValueError(f"device must be one of {known} on this machine; got {device!r}")
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be one of {known}; got {device!r}")
    return chosen


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators within the block and restore the caller's generators afterwards.

    Other threads of pyrodrop wait for the block to end.

    Raises:
        RuntimeError: another thread trains, see `pyrodrop.threads`.
    """
    with drawing(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush denormal numbers to 0 on this thread within the block, and restore the setting afterwards.

    Weights that only their prior acts on decay to denormal values, with which a CPU computes many times slower.
    """
    before = _flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def tf32_products(allowed: bool, device: torch.device) -> Iterator[None]:
    """Compute float32 matrix products and convolutions in TensorFloat-32 within the block, if `allowed`.

    Raises:
        ValueError: `allowed` on a device that is not a CUDA GPU.
    """
    if not allowed:
        yield
        return
    if device.type != "cuda":
        raise ValueError(f"precision='tf32' needs an NVIDIA GPU; the device is {device.type}")
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = True
        yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.allow_tf32 = was


def keep_heap() -> None:
    """Raise glibc's dynamic mmap threshold so that freed buffers are reused by the next step.

    glibc maps allocations above the threshold anew each time, which costs a training step thousands of page faults. Freeing
    one large mapped buffer raises the threshold to its size. The buffer here is never written to, so it takes no physical
    memory. No effect with other C libraries. See ``M_MMAP_THRESHOLD``, https://man7.org/linux/man-pages/man3/mallopt.3.html.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)  # glibc's upper limit of the dynamic threshold is 32 MiB


def _flushes_denormals() -> bool:
    return float(torch.full((), torch.finfo(torch.float32).tiny) / 8) == 0


def available(device: torch.device) -> float:
    """Bytes of the device's memory that can be had: free ones, and on Linux also what the system would give back.

    In a container with a limit of its own, that limit counts (cgroup v2).
    """
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = _system_memory()
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    return found if limit is None or used is None else max(0.0, min(found, limit - used))


def _system_memory() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # another system than Linux
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    entry = next(line for line in lines if line.startswith("MemAvailable:"))  # in every kernel since 3.14
    return 1024.0 * int(entry.split()[1])


def _number(file: Path) -> float | None:
    """The number in a file of the system; None if there is no such file, or it says that there is no limit."""
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return None
