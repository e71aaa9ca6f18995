"""Tools of all benchmarks: a command line, interleaved timings, other processes, a table, a file of results."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from cyclopts import App
from torch import Tensor

from pyrodrop.analysis.peers.networks import Parameters
from pyrodrop.analysis.reports.console import core_seconds, versions
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.analysis.reports.score_table import score_table
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.devices import processor

T = TypeVar("T")


def command(main: Callable[..., object], arguments: list[str] | None = None) -> None:
    """Call a function with its keyword arguments from the options of the command line."""
    App(default_command=main, result_action="return_value")(arguments)


def begin(device: str | torch.device = "cpu") -> None:
    """Set one thread, disable warnings, and print a line about the machine."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine(device))


def elsewhere(function: Callable[..., T], *arguments: Any, **environment: str) -> T:
    """The result of a function in a new process, which imports its module and nothing more."""
    context = multiprocessing.get_context("spawn")
    with mock.patch.dict(os.environ, environment), ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def processor_seconds(call: Callable[[], object]) -> float:
    """Processor time of a call, including processes that it starts and waits for, such as a compiler."""
    before = core_seconds()
    call()
    return core_seconds() - before


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of every variant, each called once per round, in turn.

    Use `clock` = `time.process_time` for single-threaded work on a machine that is shared with other programs.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + warmup):
        for name, call in variants.items():
            start = clock()
            call()
            if turn >= warmup:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def clock_of(device: str | torch.device) -> Callable[[], float]:
    """The clock for single-threaded work on a device: process time on a CPU; on a GPU wall time after synchronising."""
    if torch.device(device).type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def machine(device: str | torch.device = "cpu") -> str:
    """Device, processor, threads and versions in one line."""
    threads, python = torch.get_num_threads(), platform.python_version()
    gpu = "" if torch.device(device).type == "cpu" else f"{torch.cuda.get_device_name(device)}, "
    return f"{gpu}{processor()}, {threads} thread(s), torch {torch.__version__}, Python {python}"


def why(error: Exception) -> str:
    """The class of an error and the first line of its message, for the results."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def moves_all(steps: Callable[[], object], parameters: Parameters, name: str) -> None:
    """Run steps and check that they train.

    Args:
        name: the variant, for messages.
        steps: runs the steps.
        parameters: tensors that the steps change in place, or a function that returns them.

    Raises:
        RuntimeError: a parameter does not change, or is not finite afterwards.
    """
    tensors = None if callable(parameters) else list(parameters)

    def values() -> list[Tensor]:
        return [p.detach().clone() for p in (tensors if tensors is not None else parameters())]  # type: ignore[operator]

    before = values()
    steps()
    after = values()
    if not before:
        raise RuntimeError(f"{name} names no parameters, so that it cannot be seen to train")
    still = [tuple(a.shape) for a, b in zip(after, before, strict=True) if torch.equal(a, b)]
    if still:
        raise RuntimeError(f"{name} leaves {len(still)} of {len(after)} parameters as they are: shapes {still}")
    broken = [tuple(a.shape) for a in after if not bool(a.isfinite().all())]
    if broken:
        raise RuntimeError(f"{name} makes {len(broken)} of {len(after)} parameters infinite or NaN: shapes {broken}")


def report(title: str, rows: Mapping[str, Mapping[str, float]], form: str = ".2f") -> None:
    """Print a table of numbers: one row per name, one column per key of the rows."""
    print_table(score_table(rows, title=title, form=form))


def write(path: Path | None, benchmark: str, content: Mapping[str, Any], device: str | torch.device = "cpu") -> None:
    """Write the results with machine and versions as JSON if a path is given."""
    if path is not None:
        write_json(path, {"benchmark": benchmark, "machine": machine(device), "versions": versions(), **content})
        print(f"results: {path}")
