"""Many small networks in several processes, against one after the other in plain PyTorch and as compiled fits.

``python -m pyrodrop.analysis.benchmarks.jobs [--count R] [--jobs N] [--rounds N] [--out FILE]``: networks 13-50-1, each
with its own data, minibatch 128, in shares that are units of work (`pyrodrop.training.jobs`). Every unit times its own
share, a plain step of one network and a step of its compiled fit, interleaved, by process time; several processes take as
long as the one with most to do.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import jsonargparse
import torch

from pyrodrop.analysis.benchmarks.replicates import STEPS, compiled, plain, row_of, stacked
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, report, write
from pyrodrop.training.jobs import run_each


def main(count: int = 240, jobs: int = 2, rounds: int = 9, out: Path | None = None) -> None:
    """Time a step of all.

    Args:
        count: how many nets.
        jobs: number of processes.
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    print(machine())
    rows = {}
    for number in dict.fromkeys((1, jobs)):
        start = time.perf_counter()
        sizes = [len(range(first, count, number)) for first in range(number)]
        measurements = run_each(measured, [(size, rounds) for size in sizes], jobs=number, title="shares", unit="share")
        of_worker: dict[int, float] = {}
        for process, _, seconds in measurements:
            of_worker[process] = of_worker.get(process, 0.0) + seconds["together"]
        alone = {
            name: sum(size * seconds[name] for _, size, seconds in measurements) / count for name in ("plain", "fits")
        }
        rows[f"{number} processes" if number > 1 else "1 process"] = {
            **row_of({"together": max(of_worker.values()), **alone}, count),
            "of all, ms": 1e3 * sum(of_worker.values()) / STEPS,
            "wall, s": time.perf_counter() - start,
        }
    report(f"{count} nets 13-50-1, own data, a step of all", rows)
    write(out, "jobs", {"rounds": rounds, "count": count, **rows})


def measured(size: int, rounds: int) -> tuple[int, int, dict[str, float]]:
    """This process, the size of a share, and process time in seconds of steps of a share and of one network."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    together = stacked(size)
    variants = {"together": lambda: together.advance(together.done + STEPS), "plain": plain(), "fits": compiled()}
    return os.getpid(), size, interleaved(variants, rounds, 2, time.process_time)


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
