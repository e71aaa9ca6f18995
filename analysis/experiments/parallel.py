"""Several trainings in parallel processes: small networks gain more from a second process than from a second thread.

Finished trainings are kept in `Cells`, if there are some: a run that was broken off computes the others only. A worker
process ends when its parent does, even if the parent is killed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import joblib
import torch
from tqdm import tqdm

from pyrodrop.analysis.reports.folder import Cells, say_reused

T = TypeVar("T")

_WATCH = 0.5  # seconds between two looks at the parent


def train_each(
    train: Callable[..., T],
    names: Sequence[str],
    quiet: bool,
    *,
    device: torch.device,
    keep: Cells | None = None,
    **options: Any,
) -> dict[str, T]:
    """``train(name, device=..., progress=..., **options)`` for every name.

    On a CPU each is a process with one thread, as many at a time as there are cores, so results do not depend on the
    number of cores. On a GPU they take turns. With `keep`, what `train` returns is a JSON object; what the cells have is
    not trained again.
    """
    kept = {name: found for name in names if keep is not None and (found := keep.kept(name)) is not None}
    missing = [name for name in names if name not in kept]
    if keep is not None:
        say_reused(kept, keep.folder)
    if device.type != "cpu":
        done = {
            name: _kept(train, name, keep, options | {"device": device, "progress": False if quiet else None})
            for name in missing
        }
    else:
        done = _in_processes(train, missing, quiet, keep, options | {"device": device})
    return {name: kept[name] if name in kept else done[name] for name in names}  # type: ignore[misc]


def _in_processes(
    train: Callable[..., T], names: Sequence[str], quiet: bool, keep: Cells | None, options: dict[str, Any]
) -> dict[str, T]:
    if not names:
        return {}
    workers = joblib.Parallel(n_jobs=min(len(names), joblib.cpu_count()), return_as="generator")
    jobs = (joblib.delayed(_alone)(train, name, keep, options, os.getpid()) for name in names)
    bar = tqdm(
        workers(jobs), total=len(names), unit="network", desc="training", leave=False, disable=True if quiet else None
    )
    return dict(zip(names, bar, strict=True))


def _alone(train: Callable[..., T], name: str, keep: Cells | None, options: dict[str, Any], parent: int) -> T:
    end_with(parent)
    torch.set_num_threads(1)
    return _kept(train, name, keep, options | {"progress": False})


def _kept(train: Callable[..., T], name: str, keep: Cells | None, options: dict[str, Any]) -> T:
    result = train(name, **options)
    if keep is not None:
        keep.keep(name, result)  # type: ignore[arg-type]
    return result


_watched: set[int] = set()


def end_with(parent: int) -> None:
    """End this process soon after its parent, process number `parent`, has ended; no effect in that process itself.

    A killed parent cannot end its workers, which would train on for nobody. An orphan gets another parent, so a thread
    compares the parent's number every half second.
    """
    if os.getpid() == parent or parent in _watched:
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(1)  # at once, without waiting for the training

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
