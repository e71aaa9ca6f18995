"""Tools of all benchmarks: a command line, interleaved timings, other processes, a table, a file of results."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest import mock

import torch
from cyclopts import App
from torch import Tensor

from pyrodrop.analysis.lab.peers.networks import Parameters
from pyrodrop.analysis.lab.tidy import made
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.analysis.reports.score_table import score_table
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.devices import processor

T = TypeVar("T")
Problem = TypeVar("Problem")
Timed = tuple[Callable[[], object], Parameters | None]  # a call, and the parameters that it trains, if any
Measured = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by row, variant and score


@dataclass(frozen=True)
class Bench(Generic[Problem]):
    """Measurements of variants, in a row per problem. Every variant is made and must train, and all are then called in turn.

    Attributes:
        name: of the benchmark.
        variants: a function of a problem and a device that returns makers of its variants by name; or, if these need
            processes of their own, `measure`, a function of a problem and the number of rounds that returns their scores.
        rows: the problems by title.
        show: prints what is measured so far, and returns what is written.
        rounds: timings of every variant, unless others are asked for.
        warmup: calls of every variant that are not timed.
        failures: whether a variant that raises an error has it in the results; otherwise the benchmark ends.
    """

    name: str
    rows: Mapping[str, Problem]
    show: Callable[[Measured], Mapping[str, Any]]
    variants: Callable[[Problem, str], Mapping[str, Callable[[], Timed]]] | None = None
    measure: Callable[[Problem, int], Mapping[str, Mapping[str, Any]]] | None = None
    rounds: int = 9
    warmup: int = 3
    failures: bool = False

    def measured(self, title: str, rounds: int, device: str = "cpu") -> Mapping[str, Mapping[str, Any]]:
        """The scores of a row: ``seconds`` of a call, ``before, s`` of making and checking it, ``bytes`` of a GPU."""
        if self.measure is not None:
            return self.measure(self.rows[title], rounds)
        assert self.variants is not None
        cells, calls = dict[str, dict[str, Any]](), dict[str, Callable[[], object]]()
        on_gpu = torch.device(device).type == "cuda"
        for name, make in self.variants(self.rows[title], device).items():
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            try:
                call, parameters = make()
                if parameters is not None:
                    moves_all(call, parameters, f"{title}, {name}")
            except Exception as error:
                if not self.failures:
                    raise
                cells[name] = {"error": why(error)}
                continue
            cells[name], calls[name] = {"before, s": time.perf_counter() - start}, call
            if on_gpu and (used := torch.cuda.max_memory_allocated()):
                cells[name]["bytes"] = used
        for name, seconds in interleaved(calls, rounds, self.warmup, clock_of(device)).items():
            cells[name]["seconds"] = seconds
        return cells

    def run(
        self, rounds: int | None = None, out: Path | None = None, device: str = "cpu", seconds: float = math.inf
    ) -> None:
        """Measure row after row, and write the results after each.

        Args:
            rounds: timings of every variant; the benchmark's usual number if None.
            out: JSON file for the results.
            device: cpu, cuda, cuda:1 ...
            seconds: no further row is begun after this time.
        """
        begin(device)
        rounds = self.rounds if rounds is None else rounds
        start, rows = time.perf_counter(), dict[str, Mapping[str, Mapping[str, Any]]]()
        for title in self.rows:
            if time.perf_counter() - start > seconds:
                break
            rows[title] = self.measured(title, rounds, device)
            write(out, self.name, {"rounds": rounds, **self.show(rows)}, device)


def ratios(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of every variant of a row that was timed, relative to the first one."""
    seconds = {name: cell["seconds"] for name, cell in cells.items() if "seconds" in cell}
    return {name: value / next(iter(seconds.values())) for name, value in seconds.items()}


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
    """Write the results as JSON with date, commit, machine and versions if a path is given."""
    if path is not None:
        write_json(path, {"benchmark": benchmark, "machine": machine(device), **made(), **content})
        print(f"results: {path}")
