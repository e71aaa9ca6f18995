"""Several trainings in parallel processes: small networks gain more from a second process than from a second thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import joblib
import torch
from tqdm import tqdm

T = TypeVar("T")


def train_each(
    train: Callable[..., T], names: Sequence[str], quiet: bool, *, device: torch.device, **options: Any
) -> dict[str, T]:
    """``train(name, device=..., progress=..., **options)`` for every name.

    On a CPU each is a process with one thread, as many at a time as there are cores, so results do not depend on the
    number of cores. On a GPU they take turns.
    """
    if device.type != "cpu":
        return {name: train(name, device=device, progress=False if quiet else None, **options) for name in names}
    workers = joblib.Parallel(n_jobs=min(len(names), joblib.cpu_count()), return_as="generator")
    jobs = (joblib.delayed(_alone)(train, name, options | {"device": device}) for name in names)
    bar = tqdm(
        workers(jobs), total=len(names), unit="network", desc="training", leave=False, disable=True if quiet else None
    )
    return dict(zip(names, bar, strict=True))


def _alone(train: Callable[..., T], name: str, options: dict[str, Any]) -> T:
    torch.set_num_threads(1)
    return train(name, progress=False, **options)
