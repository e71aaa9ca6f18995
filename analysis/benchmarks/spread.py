"""Many small networks in several processes, against one after the other in plain PyTorch.

``python -m pyrodrop.analysis.benchmarks.spread [--count R] [--jobs N] [--rounds N] [--out FILE]``: networks 13-50-1, each
with its own data, minibatch 128, in blocks that are units of work (`pyrodrop.training.spread`). Every unit times its own
block and a plain step of one network, interleaved, by process time; several processes take as long as the one with most to
do.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import jsonargparse
import torch

from pyrodrop.analysis.benchmarks.replicates import STEPS, plain, stacked
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, report, write
from pyrodrop.training.blocks import block_sizes
from pyrodrop.training.spread import each


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
        sizes = block_sizes(count, heavy=False, program=None)
        found = each(
            measured, ((size, rounds) for size in sizes), len(sizes), jobs=number, title="blocks", unit="block"
        )
        of_worker: dict[int, float] = {}
        for process, block, _ in found:
            of_worker[process] = of_worker.get(process, 0.0) + block
        ours, theirs = max(of_worker.values()), sum(alone for *_, alone in found)
        rows[f"{number} processes" if number > 1 else "1 process"] = {
            "of a process, ms": 1e3 * ours,
            "of all, ms": 1e3 * sum(of_worker.values()),
            f"{count} plain steps, ms": 1e3 * theirs,
            "times as fast": theirs / ours,
            "wall, s": time.perf_counter() - start,
        }
    report(f"{count} nets 13-50-1, own data, a step of all", rows)
    write(out, "spread", {"rounds": rounds, "count": count, **rows})


def measured(size: int, rounds: int) -> tuple[int, float, float]:
    """This process, and process time in seconds of a step of a block, and of as many plain steps."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    together = stacked(size)
    variants = {"block": lambda: together.advance(together.done + STEPS), "plain": plain()}
    seconds = interleaved(variants, rounds, 2, time.process_time)
    return os.getpid(), seconds["block"] / STEPS, seconds["plain"] * size / STEPS


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
