"""Which device to compute on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pyrodrop.threads import drawing


def resolve(device: str | torch.device) -> torch.device:
    """A device that exists: ``auto`` is the GPU where there is one and the CPU elsewhere.

    Raises:
        ValueError: no such device on this machine.
    """
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
    """Random numbers from `seed`, for this thread alone; afterwards the caller's generators are as they were.

    Raises:
        RuntimeError: another thread trains: see `pyrodrop.threads`.
    """
    with drawing(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Numbers too small for full precision count as 0 on this thread; afterwards they are what they were.

    Weights that nothing but their prior moves decay through them, and a processor computes with them many times slower.
    """
    before = _flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def tf32_products(allowed: bool, device: torch.device) -> Iterator[None]:
    """Float32 matrix products and convolutions by TensorFloat-32 where `allowed`; afterwards as they were.

    Raises:
        ValueError: allowed on a device that is no GPU.
    """
    if not allowed:
        yield
        return
    if device.type != "cuda":
        raise ValueError(f"precision tf32 is arithmetic of NVIDIA GPUs; the device is {device.type}")
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
    """Ask the C library, by what it does of itself in larger programs, to keep freed memory for the next step.

    glibc gives large pieces back to the system when they are freed, until one as large was freed before; a step then waits
    for thousands of page faults. So one is: it is never written to and costs nothing. Elsewhere this does nothing.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)  # 32 MiB is the largest that glibc learns from


def _flushes_denormals() -> bool:
    return float(torch.full((), torch.finfo(torch.float32).tiny) / 8) == 0
