"""Units of work for several processes, by joblib.

    run_each(train, [(a, 0), (b, 1)], jobs=2)          two processes of this machine
    with joblib.parallel_config("dask"):               the workers of a cluster, as it was started
        run_each(train, [(a, 0), (b, 1)])

A unit is a call of a function. It runs alone in its process, with one thread of PyTorch. A unit whose worker is killed runs
again if the backend does so, as Dask does. Backends that return lists instead of generators, such as Ray's, are supported.

A threading backend is refused, since fits in threads of one process wait for each other (`pyrodrop.threads`).
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import joblib
import torch
from joblib.parallel import get_active_backend
from tqdm import tqdm

from pyrodrop.arguments import count
from pyrodrop.threads import training

_THREADS = (
    "the threads of a process share Pyro's handlers and torch's generator, so fits in several of them wait for each other: "
    "choose a backend of processes"
)


def through_joblib(jobs: int | None) -> bool:
    """Whether units go through joblib: by `jobs`, or by a backend that is active (`joblib.parallel_config`).

    Args:
        jobs: the number of processes of this machine; None for the active backend, if there is one.

    Raises:
        TypeError, ValueError: `jobs` is not a whole number of at least 1; the active backend runs units in threads, or it
            has workers of its own and `jobs` is not None.
    """
    backend, size = _active()
    kind = type(backend).__name__
    sequential = isinstance(backend, joblib.parallel.SequentialBackend)
    # the workers of joblib's own backends have a threading backend with one job
    nested = bool(getattr(backend, "nesting_level", 0)) and size == 1
    if getattr(backend, "uses_threads", False) and not sequential and not nested:
        raise ValueError(f"a joblib backend of threads is active ({kind}); {_THREADS}, such as loky or dask")
    _check_threads(backend)
    if jobs is None:
        return not sequential and size != 1
    count(jobs, "jobs", "the number of processes")
    if not (sequential or nested or isinstance(backend, joblib.parallel.LokyBackend)):
        raise ValueError(
            f"jobs is the number of processes of this machine, and a joblib backend is active that has its own workers "
            f"({kind}): jobs must be None; got {jobs}"
        )
    return True


def workers(jobs: int | None) -> int:
    """The number of processes that units run in: `jobs`, or the workers of the active backend."""
    return jobs or int(joblib.effective_n_jobs(_active()[1]))


@contextmanager
def processes(jobs: int | None) -> Iterator[bool]:
    """Use `jobs` processes of this machine for the units of calls within the block; None keeps the active backend.

    Yields whether units run in other processes.
    """
    away = through_joblib(jobs) and jobs != 1
    with nullcontext() if jobs is None else joblib.parallel_config("loky", n_jobs=jobs):
        yield away


def run_each(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    *,
    jobs: int | None,
    title: str,
    unit: str,
    progress: bool | None = None,
    done: Callable[[int, Any], object] | None = None,
) -> list[Any]:
    """``[function(*values) for values in arguments]``, each as a unit of work.

    Args:
        function: of a module that the workers can import, or of ``__main__``.
        arguments: of every unit; `check_picklable` finds values that cannot be sent to another process.
        jobs: as in `through_joblib`. With 1 the units run in this process, one after the other.
        progress: whether to show a progress bar, which counts the units that are done; if None, where the output is a
            terminal.
        done: called in this process with the number of a unit and its result, as soon as it has arrived: after every unit,
            or after the last one where the backend has no generators, such as Ray's.

    Raises:
        ValueError: as `through_joblib`.
        Exception: an error that a unit raises.
    """
    caller = os.getpid()
    units = [joblib.delayed(_alone)(caller, number, function, values) for number, values in enumerate(arguments)]
    hidden = None if progress is None else not progress
    results: dict[int, Any] = {}
    with processes(jobs) as away, tqdm(total=len(units), unit=unit, desc=title, leave=False, disable=hidden) as bar:
        if away:
            early = get_active_backend()[0].supports_return_generator
            arriving = joblib.Parallel(batch_size=1, return_as="generator_unordered" if early else "list")(units)
        else:
            arriving = (call(*values) for call, values, _ in units)
        for number, result in arriving:
            results[number] = result
            if done is not None:
                done(number, result)
            bar.update()
    return [results[number] for number in range(len(units))]


def check_picklable(values: Mapping[str, Any]) -> None:
    """Raise a TypeError for the first value that cannot be sent to another process, by its name."""
    for name, value in values.items():
        try:
            pickle.dumps(joblib.wrap_non_picklable_objects((value,), keep_wrapper=False))
        except Exception as error:  # whatever an object raises that is asked for its state
            raise TypeError(
                f"units of work are sent to other processes as pickles, and {name} cannot be pickled: "
                f"{(str(error).splitlines() or [type(error).__name__])[0]}. Leave out what belongs to this process (open "
                "files, locks, connections, generators), or run in one process"
            ) from error


def _alone(caller: int, number: int, function: Callable[..., Any], values: tuple[Any, ...]) -> tuple[int, Any]:
    """Run a unit, alone in this process and with one thread."""
    if os.getppid() == caller:
        _end_with(caller)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with training(), joblib.parallel_config("sequential", n_jobs=1):
            return number, function(*values)
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _end_with(parent: int) -> None:
    """End this worker soon after its parent ends or is killed, and leave ctrl-C to the parent."""

    def watch() -> None:
        while os.getppid() == parent:  # an orphan gets another parent
            time.sleep(0.5)
        os._exit(1)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def _active() -> tuple[Any, int]:
    """joblib's active backend, and the number of its jobs as joblib counts them: -1 for one per processor."""
    backend, size = get_active_backend()
    return backend, getattr(backend, "default_n_jobs", 1) if size is None else size


def _check_threads(backend: Any) -> None:
    """Raise a ValueError for a Dask cluster whose workers have several threads."""
    threads = getattr(getattr(backend, "client", None), "nthreads", None)
    most = max(threads().values(), default=1) if callable(threads) else 1
    if most > 1:
        raise ValueError(
            f"the workers of this cluster have up to {most} threads; {_THREADS}: start workers with one thread each, "
            "LocalCluster(threads_per_worker=1) or dask worker --nthreads 1"
        )
