"""The frame of all benchmarks: rows and variants, interleaved timings, other processes, a table and a file of results."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest import mock

import torch
from cyclopts import App
from torch import Tensor

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.peers.networks import Parameters
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.analysis.reports.score_table import score_table
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.checks import known
from pyrodrop.devices import processor

T = TypeVar("T")
Problem = TypeVar("Problem")
Timed = tuple[Callable[[], object], Parameters | None]  # a call, and the parameters that it trains, if any
Scores = Mapping[str, Any]
Cells = Mapping[str, Scores | Sequence[Scores]]  # by variant; a sequence has the scores of several seeds, from 0


@dataclass(frozen=True)
class Bench(Generic[Problem]):
    """Measurements of variants, in a row per problem. Every variant is made and must train, and all are then called in turn.

    Attributes:
        name: of the benchmark.
        rows: the problems by title.
        variants: a function of a problem and a device that returns makers of its variants by name; or, if these are not
            calls to be timed, or need processes of their own, `measure`, a function of a problem, the number of rounds and
            a device that returns their scores.
        rounds: timings of every variant, unless others are asked for.
        warmup: calls of every variant that are not timed.
        per: a factor of the seconds of a call by problem, variant and device, such as one over its number of steps.
        failures: whether a variant that raises an error has it in the results; otherwise the benchmark ends.
        usual: the rows unless others are asked for; all if None.
    """

    name: str
    rows: Mapping[str, Problem]
    variants: Callable[[Problem, str], Mapping[str, Callable[[], Timed]]] | None = None
    measure: Callable[[Problem, int, str], Cells] | None = None
    rounds: int = 9
    warmup: int = 3
    per: Callable[[Problem, str, str], float] = lambda problem, variant, device: 1.0
    failures: bool = False
    usual: Sequence[str] | None = None

    def measured(self, title: str, rounds: int, device: str = "cpu") -> Cells:
        """The scores of a row: ``seconds`` of a call, ``before, s`` of making and checking it, ``bytes`` of a GPU."""
        problem = self.rows[title]
        if self.variants is None:
            assert self.measure is not None
            return self.measure(problem, rounds, device)
        cells, calls = dict[str, dict[str, Any]](), dict[str, Callable[[], object]]()
        on_gpu = torch.device(device).type == "cuda"
        for name, make in self.variants(problem, device).items():
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
            cells[name]["seconds"] = seconds * self.per(problem, name, device)
        return cells

    def run(
        self, out: Path | None = None, *, names: list[str] | None = None, rounds: int | None = None, device: str = "cpu",
        seconds: float = math.inf,
    ) -> None:  # fmt: skip
        """Measure row after row, print each, and put it into the file.

        Args:
            out: a table of results, ``NAME.csv``; rows that it has are not measured again.
            names: titles of the rows to measure; the usual ones if left out.
            rounds: timings of every variant, or repetitions; the benchmark's usual number if left out.
            device: cpu, cuda, cuda:1 ...
            seconds: no further row is begun after this time.
        """
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        print(machine(device))
        study, start = f"{self.name}-{torch.device(device).type}", time.perf_counter()
        there = tidy.read(out) if out is not None and out.is_file() else ()
        for title in [known(name, self.rows, f"row of {self.name}") for name in names or self.usual or self.rows]:
            if any((row["study"], row["problem"]) == (study, title) for row in there):
                continue
            if time.perf_counter() - start > seconds:
                break
            cells = self.measured(title, self.rounds if rounds is None else rounds, device)
            print_table(score_table(shown(cells), title=f"{self.name}: {title}"))
            for name, cell in cells.items():
                if "error" in cell:
                    print(f"{name}: {cell['error']}")  # type: ignore[call-overload]
            if out is not None:
                tidy.put(out, rows_of(study, title, cells), {"machine": machine(device)})
                print(f"results: {out}", flush=True)


def rows_of(study: str, title: str, cells: Cells) -> list[tidy.Row]:
    """The rows of a table of results."""
    return [
        {"study": study, "problem": title, "method": name, **each}
        for name, cell in cells.items()
        for each in ([cell] if isinstance(cell, Mapping) else [{"seed": s, **scores} for s, scores in enumerate(cell)])
    ]


def shown(cells: Cells) -> dict[str, dict[str, float]]:
    """The numbers of a row by variant, means over seeds with their errors, and ratios of seconds to the first variant."""
    rows = {name: tidy.means([cell] if isinstance(cell, Mapping) else cell) for name, cell in cells.items()}
    return {name: row | {"ratio": ratio} if (ratio := ratios(cells).get(name)) else row for name, row in rows.items()}


def ratios(cells: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of every variant of a row that was timed, relative to the first one."""
    seconds = {name: cell["seconds"] for name, cell in cells.items() if isinstance(cell, Mapping) and "seconds" in cell}
    return {name: value / next(iter(seconds.values())) for name, value in seconds.items()}


def command(main: Callable[..., object], arguments: list[str] | None = None) -> None:
    """Call a function with its arguments from the command line."""
    App(default_command=main, result_action="return_value")(arguments)


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
