"""Several trainings as units of work (`pyrodrop.analysis.reports.workers`).

Small networks gain more from a second process than from a second thread. Names and settings are sent to the workers, which
load the data themselves. With `Cells`, finished trainings are stored and an interrupted run continues with the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import joblib
from tqdm import tqdm

from pyrodrop.analysis.reports.folder import RECORD, Cells, say_reused
from pyrodrop.analysis.reports.job_options import JobOptions
from pyrodrop.analysis.reports.workers import run_each, workers

T = TypeVar("T")


def train_each(
    train: Callable[..., T],
    names: Sequence[str],
    job: JobOptions,
    *,
    keep: Cells | None = None,
    bar: tqdm | None = None,
    **options: Any,
) -> dict[str, T]:
    """``train(name, device=..., progress=..., **options)`` for every name.

    Each runs in a process with one thread, so results do not depend on the number of processes. On a GPU they run one after
    the other in this process, unless `job` has a number of processes; these share the GPU, each with a CUDA context.

    Args:
        train: a function at the top level of a module.
        names: names of the trainings.
        job: options of the run. If it has no number of processes, the workers of the active joblib backend, such as Dask's,
            are used, or else as many processes as there are cores.
        keep: cells to store the results in, which must be JSON objects; a stored result is not computed again.
        bar: a bar of the caller, which moves on by each result, in place of one of these trainings alone.
        options: further arguments of `train`.

    Raises:
        TypeError, ValueError: the number of processes is not a whole number of at least 1.
    """
    kept: dict[str, Any] = {name: cell for name in names if keep is not None and (cell := keep.kept(name)) is not None}
    missing = [name for name in names if name not in kept]
    if keep is not None:
        say_reused(kept, keep.folder)
    device, jobs = job.device, job.jobs
    shared: dict[str, Any] = options | {"device": device}
    if device.type != "cpu" and (jobs or 1) == 1 and workers(None) == 1:
        jobs, shared["progress"] = 1, job.progress
    else:
        shared["progress"] = False
        if jobs is None and workers(None) == 1:
            jobs = max(1, min(len(missing), joblib.cpu_count()))

    def arrived(number: int, result: T) -> None:
        if keep is not None:
            kept[missing[number]] = keep.keep(missing[number], result)  # type: ignore[arg-type]
        if bar is not None:
            bar.update()

    results = run_each(
        _unit, [(train, name, shared) for name in missing], jobs=jobs, title="training", unit="network",
        progress=job.progress if bar is None else False, done=arrived,
    )  # fmt: skip
    results_by_name = dict(zip(missing, results, strict=True)) | kept
    return {name: results_by_name[name] for name in names}


def _unit(train: Callable[..., T], name: str, options: dict[str, Any]) -> T:
    return train(name, **options)


@contextmanager
def on_this_machine(folder: Path) -> Iterator[Path]:
    """The folder of a run if it exists on this machine; otherwise a temporary one, for a worker on another machine."""
    if (folder / RECORD).exists():
        yield folder
        return
    with tempfile.TemporaryDirectory() as shared:
        yield Path(shared)
