"""Timing that compares: variants take turns in one process, medians count, and the machine is named."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of every variant by `clock`, each called once a round, in turn."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + warmup):
        for name, call in variants.items():
            start = clock()
            call()
            if turn >= warmup:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def machine() -> str:
    """Processor, threads and versions in one line."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, Python {platform.python_version()}"
