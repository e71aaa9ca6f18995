"""Units of work for several processes: the engine is joblib's.

    run_each(train, [(a, 0), (b, 1)], jobs=2)          two processes of this machine
    with joblib.parallel_config("dask"):               the workers of a cluster, as they are
        run_each(train, [(a, 0), (b, 1)])

A unit is a function and its arguments, as the bytes of a pickle. It runs alone in its process, with one thread of PyTorch,
so its result does not depend on the number of workers. A unit whose worker is killed is done again where the backend does
that, as Dask does. Backends that return lists and no generators, such as Ray's, will do.

A threading backend is refused, since fits in threads of one process wait for each other (`pyrodrop.threads`).
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any, NamedTuple

import joblib
import torch
from joblib.parallel import get_active_backend
from tqdm import tqdm

from pyrodrop.arguments import count
from pyrodrop.failed import Failed
from pyrodrop.processes import Process
from pyrodrop.threads import training

_WATCH = 0.5  # seconds between two looks at the parent
_THREADS = (
    "the threads of a process share Pyro's handlers and torch's generator, so fits in several of them wait for each other: "
    "choose a backend of processes"
)


def through_joblib(jobs: int | None) -> bool:
    """Whether units go through joblib: by `jobs`, or by a backend that is active (`joblib.parallel_config`).

    Args:
        jobs: the number of processes of this machine; None for the active backend, if there is one.

    Raises:
        TypeError, ValueError: `jobs` is not a whole number of at least 1; the active backend runs units in threads, or it is
            not one of this machine and there are `jobs`.
    """
    backend, active = get_active_backend()
    kind = type(backend).__name__
    sequential = isinstance(backend, joblib.parallel.SequentialBackend)
    size = getattr(backend, "default_n_jobs", 1) if active is None else active
    # the workers of joblib's own backends have a threading backend with one job
    nested = bool(getattr(backend, "nesting_level", 0)) and size == 1
    if getattr(backend, "uses_threads", False) and not sequential and not nested:
        raise ValueError(f"a joblib backend of threads is active ({kind}); {_THREADS}, such as loky or dask")
    if jobs is None:
        return not sequential and size != 1
    count(jobs, "jobs", "the number of processes")
    if not (sequential or nested or isinstance(backend, joblib.parallel.LokyBackend)):
        raise ValueError(
            f"jobs is the number of processes of this machine, and a joblib backend is active that has its own workers "
            f"({kind}): jobs must be None; got {jobs}"
        )
    return True


def run_each(
    function: Callable[..., Any],
    arguments: Iterable[tuple[Any, ...]],
    total: int,
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
        arguments: of every unit. They are pickled when a worker is free, one after the other.
        jobs: as in `through_joblib`. With 1 the units run in this process, one after the other.
        progress: whether to show a progress bar, which counts the units that are done; if None, where the output is a
            terminal.
        done: called in this process with the number of a unit and its result, as soon as it has arrived: after every unit,
            or after the last one where the backend has no generators, such as Ray's.

    Raises:
        TypeError: something cannot be pickled.
        ValueError: as `through_joblib`; or a worker of the cluster has several threads.
        Exception: whatever a unit raises.
    """
    away = through_joblib(jobs)
    _check_threads(get_active_backend()[0])
    collected: dict[int, Any] = {}
    with tqdm(
        total=total, unit=unit, desc=title, leave=False, disable=None if progress is None else not progress
    ) as bar:
        results = _away(function, arguments, unit, jobs, bar) if away and jobs != 1 else _here(function, arguments, bar)
        for number, result in results:
            collected[number] = result
            if done is not None:
                done(number, result)
    return [collected[number] for number in range(len(collected))]


def _here(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], bar: Any) -> Iterator[tuple[int, Any]]:
    """The results of the units, run in this process."""
    for number, values in enumerate(arguments):
        with _one_thread(), joblib.parallel_config("sequential", n_jobs=1):
            result = function(*values)
        yield number, result
        bar.update()


def _away(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], unit: str, jobs: int | None, bar: Any
) -> Iterator[tuple[int, Any]]:
    """The results of the units with their numbers, as they arrive."""
    parent = str(Process.this())
    with ExitStack() as stack:
        if jobs is not None:
            stack.enter_context(joblib.parallel_config("loky", n_jobs=jobs))
        early = get_active_backend()[0].supports_return_generator
        workers = _Counted(batch_size=1, return_as="generator_unordered" if early else "list")
        workers.bar = bar
        units = (
            joblib.delayed(_alone)(pickled({f"a {unit}": (function, values)}), number, parent)
            for number, values in enumerate(arguments)
        )
        if early:
            with without_interrupts():
                results = workers(units)  # which starts them
        else:
            results = workers(units)
        for done in results:
            yield done.number, _received(done)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold ctrl-C back until the end of the block, and for good in processes that are started in it.

    A terminal sends it to all processes, and each of them would show a traceback; their parent ends them. They inherit that
    it is blocked. Here another thread may get it, so it is noted as well.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    with suppress(ImportError, AttributeError):  # starting it later would unblock
        import_module("joblib.externals.loky.backend.resource_tracker").ensure_running()
    came: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def processes(jobs: int | None) -> Iterator[None]:
    """So many processes of this machine for the units of calls within the block; None leaves what is active."""
    through_joblib(jobs)
    with nullcontext() if jobs is None else joblib.parallel_config("loky", n_jobs=jobs):
        yield


class _Counted(joblib.Parallel):
    """Shows the number of finished units; joblib calls `print_progress` after each, whatever the backend."""

    bar: Any

    def print_progress(self) -> None:
        self.bar.update(self.n_completed_tasks - self.bar.n)


def pickled(parts: Mapping[str, Any]) -> bytes:
    """The values, which may be of ``__main__``, as the bytes of one pickle.

    Raises:
        TypeError: one of them cannot be pickled; the message names it.
    """
    try:
        return _dumped(list(parts.values()))
    except Exception as error:  # whatever an object raises that is asked for its state
        for name, value in parts.items():
            try:
                _dumped(value)
            except Exception as reason:
                raise TypeError(
                    f"units of work are sent to other processes as pickles, and {name} cannot be pickled: {_line(reason)}. "
                    "Leave out what belongs to this process (open files, locks, connections, generators), or run in one "
                    "process"
                ) from error
        raise


def _dumped(value: Any) -> bytes:
    return pickle.dumps(joblib.wrap_non_picklable_objects((value,), keep_wrapper=False))


class _Done(NamedTuple):
    """What a worker sends back.

    Attributes:
        said: what pyrodrop's logger was told, as level and message.
    """

    number: int
    result: bytes
    said: list[tuple[int, str]]


def _alone(payload: bytes, number: int, parent: str) -> _Done:
    """Run a unit, alone in this process and with one thread."""
    process = Process.of(parent)
    assert process is not None
    end_with(process)
    here = process.here and process.pid == os.getpid()
    if not here:
        tqdm.set_lock(
            threading.RLock()
        )  # its own is a semaphore, which a worker that is ended leaves behind with a warning
    with training(), _one_thread(), joblib.parallel_config("sequential", n_jobs=1), _Said(here) as said:
        ((function, values),) = _unpickled(payload)
        try:
            return _Done(number, _dumped(function(*values)), said.records)
        except (OSError, Failed) as error:
            if here or _is_child(process):
                raise
            raise Failed(
                f"{where()} failed: {error}. Workers of a cluster read data for themselves, from the folder PYRODROP_DATA "
                "or their cache"
            ) from error


def _unpickled(payload: bytes) -> Any:
    try:
        (value,) = pickle.loads(payload)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"{where()} cannot import what a unit of work is made of: {_line(error)}. Workers need the same packages and "
            "modules as the process that they work for"
        ) from error
    return value


def _received(done: _Done) -> Any:
    log = logging.getLogger("pyrodrop")
    for level, message in done.said:
        log.log(level, "%s", message)
    (value,) = pickle.loads(done.result)
    return value


class _Said(logging.Handler):
    """Collects what pyrodrop's logger is told in a worker, where nobody sees it."""

    def __init__(self, here: bool) -> None:
        super().__init__(logging.INFO)
        self.here, self.records = here, list[tuple[int, str]]()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelno, record.getMessage()))

    def __enter__(self) -> _Said:
        log = logging.getLogger("pyrodrop")
        if not self.here:
            self._before = log.propagate, log.handlers[:]
            log.propagate, log.handlers[:] = False, [self]
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger("pyrodrop")
        if not self.here:
            log.propagate, log.handlers[:] = self._before


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_threads(backend: Any) -> None:
    """Raise a ValueError for a Dask cluster whose workers have several threads."""
    threads = getattr(getattr(backend, "client", None), "nthreads", None)
    most = max(threads().values(), default=1) if callable(threads) else 1
    if most > 1:
        raise ValueError(
            f"the workers of this cluster have up to {most} threads; {_THREADS}: start workers with one thread each, "
            "LocalCluster(threads_per_worker=1) or dask worker --nthreads 1"
        )


def where() -> str:
    """This worker in words."""
    return f"the worker process {os.getpid()} on {socket.gethostname()}"


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


_watched: set[int] = set()


def _is_child(parent: Process) -> bool:
    return parent.here and os.getppid() == parent.pid


def end_with(parent: Process) -> None:
    """End this process soon after its parent has ended, if `parent` is that; no effect in other processes.

    A killed parent cannot end its workers, which would train on for nobody. An orphan gets another parent, so a thread
    compares the parent's number every half second. The worker of a cluster is the child of another process, and stays.
    """
    if not _is_child(parent) or parent.pid in _watched:
        return
    _watched.add(parent.pid)

    def watch() -> None:
        while os.getppid() == parent.pid:
            time.sleep(_WATCH)
        os._exit(1)  # at once, without waiting for the training

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
