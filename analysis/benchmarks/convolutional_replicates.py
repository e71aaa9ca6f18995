"""Several LeNets at once: one replicated step against compiled fits one by one, and against plain PyTorch steps.

``python -m pyrodrop.analysis.benchmarks.convolutional_replicates [--count R] [--rounds N] [--out FILE]``: minibatch 128,
Adam, one thread, process time, interleaved medians. On a CPU the replicates are called one after the other, since a
convolution of R groups takes longer than R convolutions.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import jsonargparse
import torch
from torch import nn

from pyrodrop import models
from pyrodrop.analysis.benchmarks.networks import BATCH, POSTERIORS, networks, ours, plain
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write
from pyrodrop.data import Dataset
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack


def main(count: int = 8, rounds: int = 9, out: Path | None = None) -> None:
    """Time a step of all.

    Args:
        count: how many nets.
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine())
    network = networks()["LeNet"]
    together, (fit, _), (eager, _) = stacked(count), ours(network, "Bernoulli", "compiled"), plain(network)
    steps = network.steps
    variants = {
        "replicated, ms": lambda: together.advance(together.done + steps),
        "fits one by one, ms": fit,
        "plain steps one by one, ms": eager,
    }
    moves_all(variants["replicated, ms"], together.parameters.values(), "the replicated step")
    seconds = interleaved(variants, rounds, 2, time.process_time)
    row = {name: 1e3 * own / steps * (1 if name == "replicated, ms" else count) for name, own in seconds.items()}
    row["times as fast as plain"] = row["plain steps one by one, ms"] / row["replicated, ms"]
    row["times as fast as compiled fits"] = row["fits one by one, ms"] / row["replicated, ms"]
    report(f"{count} LeNets", {"one step of all": row})
    write(out, "convolutional replicates", {"rounds": rounds, "count": count, **row})


def stacked(count: int) -> Loop:
    """A compiled training of that many nets on the same data."""
    network = networks()["LeNet"]
    guide, prior = POSTERIORS["Bernoulli"]
    problems = []
    for _ in range(count):
        model = models.from_module(network.build(nn.Identity), prior(), network.likelihood)
        data = Dataset(network.x, network.y)
        problems.append(Problem.of(model, guide(model), data, "local", torch.device("cpu")))
    settings = Settings(steps=100_000, batch_size=BATCH, estimator="local", engine="compiled", device="cpu")
    with training_mode(*problems):
        loop = Stack(problems, settings).loop()
        loop.start()
    if loop.engine.name != "compiled":
        raise RuntimeError("the replicated step was not compiled")
    return loop


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
