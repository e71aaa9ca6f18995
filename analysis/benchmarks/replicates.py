"""Many small networks at once: one replicated step against as many sequential plain PyTorch steps.

``python -m pyrodrop.analysis.benchmarks.replicates [--count R] [--rounds N] [--out FILE] [--device cuda]``: networks
13-50-1, each with its own data, minibatch 128, against `nn.Dropout` with default Adam; one thread, process time (on a GPU
wall time), interleaved medians.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import jsonargparse
import torch
from torch import nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.networks import BATCH
from pyrodrop.analysis.benchmarks.timing import clock_of, interleaved, machine, moves_all, report, write
from pyrodrop.data import Dataset
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack

ROWS, RATE, STEPS = 512, 0.05, 10
_OWN = (
    1000  # replicates with a model and a guide of their own; more of them share the first one's, to be ready in minutes
)


def main(count: int = 240, rounds: int = 9, out: Path | None = None, device: str = "cpu") -> None:
    """Time a step of all.

    Args:
        count: how many nets.
        rounds: timings of every variant.
        out: JSON file for the results.
        device: cpu, cuda, cuda:1 ...
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine(device))
    together, alone = stacked(count, device), plain(device)
    variants = {"one replicated step": lambda: together.advance(together.done + STEPS), "plain": alone}
    moves_all(variants["one replicated step"], together.parameters.values(), "the replicated step")
    seconds = interleaved(variants, rounds, 2, clock_of(device))
    ours, theirs = seconds["one replicated step"] / STEPS, seconds["plain"] * count / STEPS
    row = {"replicated, ms": 1e3 * ours, f"{count} plain steps, ms": 1e3 * theirs, "times as fast": theirs / ours}
    report(f"{count} nets 13-50-1, own data", {"one step of all": row})
    write(out, "replicates", {"rounds": rounds, "count": count, **row}, device)


def stacked(count: int, device: str = "cpu") -> Loop:
    """A compiled training of that many nets."""
    problems: list[Problem] = []
    sets = []
    for r in range(count):
        generator = torch.Generator().manual_seed(r)
        data = Dataset(*(torch.randn(ROWS, d, generator=generator) for d in (13, 1))).standardized()
        sets.append(data)
        if r > 0 and count > _OWN:
            problems.append(problems[0])
            continue
        model = models.MLP([13, 50, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
        guide = guides.BernoulliDropout(model, RATE)
        problems.append(Problem.of(model, guide, data, "local", torch.device(device)))
    settings = Settings(steps=100_000, batch_size=BATCH, estimator="local", engine="compiled", device=device)
    generators = [torch.Generator(device).manual_seed(r) for r in range(count)]
    loop = Stack(problems, generators, settings, sets).loop()
    loop.start()
    if loop.engine.name != "compiled":
        raise RuntimeError("the replicated step was not compiled")
    return loop


def plain(device: str = "cpu") -> Callable[[], None]:
    """Steps of one net, as one would write them."""
    net = nn.Sequential(nn.Dropout(RATE), nn.Linear(13, 50), nn.ReLU(), nn.Dropout(RATE), nn.Linear(50, 1)).to(device)
    optimizer, loss = torch.optim.Adam(net.parameters()), nn.MSELoss()
    x, y = torch.randn(ROWS, 13, device=device), torch.randn(ROWS, 1, device=device)

    def steps() -> None:
        for _ in range(STEPS):
            rows = torch.randint(ROWS, (BATCH,), device=device)
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()

    moves_all(steps, net.parameters(), "plain PyTorch")
    return steps


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
