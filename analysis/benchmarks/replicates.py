"""Many networks at once: one replicated step against as many sequential steps, plain PyTorch's and ours.

``python -m pyrodrop.analysis.benchmarks.replicates [--count R] [--convolutional R] [--rounds N] [--out FILE]``: networks
13-50-1, each with its own data, and LeNets, minibatch 128, against `nn.Dropout` with default Adam and against compiled fits
one by one; one thread, process time, interleaved medians.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonargparse
import torch
from torch import nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.networks import BATCH, POSTERIORS, networks, ours
from pyrodrop.analysis.benchmarks.networks import plain as plain_network
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write
from pyrodrop.data import Dataset
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack

ROWS, RATE, STEPS = 512, 0.05, 10


def main(count: int = 240, convolutional: int = 8, rounds: int = 9, out: Path | None = None) -> None:
    """Time a step of all.

    Args:
        count: how many nets 13-50-1.
        convolutional: how many LeNets.
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine())
    lenet = networks()["LeNet"]
    rows = {
        f"{count} nets 13-50-1, own data": timed(stacked(count), plain(), STEPS, count, rounds),
        f"{convolutional} LeNets": timed(
            stacked_lenets(convolutional), plain_network(lenet)[0], lenet.steps, convolutional, rounds,
            ours(lenet, "Bernoulli", "compiled")[0],
        ),
    }  # fmt: skip
    report("One step of all replicates", rows)
    write(out, "replicates", {"rounds": rounds, "rows": rows})


def timed(
    together: Loop,
    alone: Callable[[], object],
    steps: int,
    count: int,
    rounds: int,
    fit: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Milliseconds of a replicated step and of as many single steps.

    Args:
        together: the replicated training.
        alone: makes steps of plain PyTorch.
        steps: that `alone` and `fit` make.
        count: number of replicates.
        rounds: timings of each.
        fit: makes compiled steps of one fit; not timed if None.
    """
    variants: dict[str, Callable[[], object]] = {
        "replicated, ms": lambda: together.advance(together.done + steps),
        "plain steps one by one, ms": alone,
        **({} if fit is None else {"compiled fits one by one, ms": fit}),
    }
    moves_all(variants["replicated, ms"], together.parameters.values(), "the replicated step")
    seconds = interleaved(variants, rounds, 2, time.process_time)
    row = {name: 1e3 * own / steps * (1 if name == "replicated, ms" else count) for name, own in seconds.items()}
    return {**row, "times as fast as plain": row["plain steps one by one, ms"] / row["replicated, ms"]}


def stacked(count: int) -> Loop:
    """A compiled training of that many nets."""
    problems = []
    for r in range(count):
        generator = torch.Generator().manual_seed(r)
        data = Dataset(*(torch.randn(ROWS, d, generator=generator) for d in (13, 1))).standardized()
        model = models.MLP([13, 50, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
        guide = guides.BernoulliDropout(model, RATE)
        problems.append(Problem.of(model, guide, data, "local", torch.device("cpu")))
    return started(problems)


def stacked_lenets(count: int) -> Loop:
    """A compiled training of that many LeNets on the same data."""
    network = networks()["LeNet"]
    guide, prior = POSTERIORS["Bernoulli"]
    problems = []
    for _ in range(count):
        model = models.from_module(network.build(nn.Identity), prior(), network.likelihood)
        data = Dataset(network.x, network.y)
        problems.append(Problem.of(model, guide(model), data, "local", torch.device("cpu")))
    return started(problems)


def started(problems: Sequence[Problem]) -> Loop:
    """Their training after its first step."""
    settings = Settings(steps=100_000, batch_size=BATCH, estimator="local", engine="compiled", device="cpu")
    generators = [torch.Generator().manual_seed(r) for r in range(len(problems))]
    with training_mode(*problems):
        loop = Stack(problems, generators, settings).loop()
        loop.start()
    if loop.engine.name != "compiled":
        raise RuntimeError("the replicated step was not compiled")
    return loop


def plain() -> Callable[[], None]:
    """Steps of one net, as one would write them."""
    net = nn.Sequential(nn.Dropout(RATE), nn.Linear(13, 50), nn.ReLU(), nn.Dropout(RATE), nn.Linear(50, 1))
    optimizer, loss = torch.optim.Adam(net.parameters()), nn.MSELoss()
    x, y = torch.randn(ROWS, 13), torch.randn(ROWS, 1)

    def steps() -> None:
        for _ in range(STEPS):
            rows = torch.randint(ROWS, (BATCH,))
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()

    moves_all(steps, net.parameters(), "plain PyTorch")
    return steps


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
