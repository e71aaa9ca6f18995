"""Many small networks at once, against as many one after the other: in plain PyTorch, and as compiled fits.

``python -m pyrodrop.analysis.benchmarks.replicates [--count R] [--rounds N] [--out FILE] [--device cuda]``: networks
13-50-1, each with its own data, minibatches of 128, against `nn.Dropout` with fused Adam and against one compiled fit, whose
time is counted R times; one thread, process time (on a GPU wall time), interleaved medians. For 100 and more on a CPU also
whole calls with minibatches of 32, for which an earlier call has compiled.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.networks import BATCH
from pyrodrop.analysis.benchmarks.timing import clock_of, interleaved, machine, moves_all, report, write
from pyrodrop.data import Dataset
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack

ROWS, RATE, STEPS = 512, 0.05, 40
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
    together = stacked(count, device)
    variants = {
        "together": lambda: together.advance(together.done + STEPS),
        "plain": plain(device),
        "fits": compiled(device),
    }
    moves_all(variants["together"], together.parameters.values(), "the replicated step")
    row = row_of(interleaved(variants, rounds, 2, clock_of(device)), count)
    report(f"{count} nets 13-50-1, own data", {"one step of all": row})
    whole = {} if device != "cpu" or count < 100 else {"whole": whole_calls(count)}
    write(out, "replicates", {"rounds": rounds, "count": count, **row, **whole}, device)


def row_of(seconds: dict[str, float], count: int) -> dict[str, float]:
    """The numbers of a report, from seconds of `STEPS` steps of all, as many of a plain loop, ten times of a fit."""
    ours, theirs, fits = (seconds[name] / STEPS * 1e3 for name in ("together", "plain", "fits"))
    fits /= 10  # so many steps that what surrounds them does not count
    return {
        "replicated, ms": ours,
        f"{count} plain steps, ms": theirs * count,
        f"{count} steps of compiled fits, ms": fits * count,
        "times as fast": theirs * count / ours,
        "times as fast as compiled fits": fits * count / ours,
    }


def whole_calls(count: int, steps: int = 2_000, size: int = 32) -> dict[str, float]:
    """Seconds of a whole call of `fit_replicates`, and of `count` whole fits and plain loops, from one of each."""
    model, guide = pair(0)
    sets = [data_of(r) for r in range(count)]
    settings: Any = {"batch_size": size, "estimator": "local", "engine": "compiled", "device": "cpu", "progress": False}
    calls: dict[str, Callable[[int], object]] = {
        "together": lambda n: pyrodrop.fit_replicates(model, guide, sets, count=count, steps=n, **settings),
        "plain": lambda n: [own() for own in [plain(size=size)] for _ in range(n // STEPS)],
        "fits": lambda n: pyrodrop.fit(model, guide, sets[0], steps=n, **settings),
    }
    for call in calls.values():
        call(STEPS)
    seconds = interleaved(
        {name: functools.partial(call, steps) for name, call in calls.items()}, 1, 0, time.process_time
    )
    row = row_of(
        {name: value * STEPS / steps * (10 if name == "fits" else 1) for name, value in seconds.items()}, count
    )
    report(f"{count} nets 13-50-1, whole calls of {steps:,} steps with minibatches of {size}, by step", {"all": row})
    return {"steps": steps, "batch_size": size, **row}


def data_of(seed: int) -> Dataset:
    """Standardised noise."""
    generator = torch.Generator().manual_seed(seed)
    return Dataset(*(torch.randn(ROWS, d, generator=generator) for d in (13, 1))).standardized()


def pair(seed: int) -> tuple[models.MLP, guides.BernoulliDropout]:
    """A model and its guide."""
    model = models.MLP([13, 50, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0), seed=seed)
    return model, guides.BernoulliDropout(model, RATE)


def compiled(device: str = "cpu") -> Callable[[], None]:
    """Steps of one compiled fit."""
    settings: Any = {
        "steps": 100_000,
        "batch_size": BATCH,
        "estimator": "local",
        "engine": "compiled",
        "device": device,
    }
    training: Any = pyrodrop.Training(*pair(0), data_of(0), **settings)

    def steps() -> None:
        training.advance(10 * STEPS)

    moves_all(steps, lambda: training.fit.model.parameters(), "the compiled fit")
    if training.engine != "compiled":
        raise RuntimeError("the fit was not compiled")
    return steps


def stacked(count: int, device: str = "cpu") -> Loop:
    """A compiled training of that many nets."""
    problems: list[Problem] = []
    sets = []
    for r in range(count):
        sets.append(data_of(r))
        shared = r > 0 and count > _OWN
        problems.append(problems[0] if shared else Problem.of(*pair(r), sets[r], "local", torch.device(device)))
    settings = Settings(steps=100_000, batch_size=BATCH, estimator="local", engine="compiled", device=device)
    loop = Stack(problems, settings, sets).loop()
    loop.start()
    if loop.engine.name != "compiled":
        raise RuntimeError("the replicated step was not compiled")
    return loop


def plain(device: str = "cpu", size: int = BATCH) -> Callable[[], None]:
    """Steps of one net, as one would write them."""
    net = nn.Sequential(nn.Dropout(RATE), nn.Linear(13, 50), nn.ReLU(), nn.Dropout(RATE), nn.Linear(50, 1)).to(device)
    optimizer, loss = torch.optim.Adam(net.parameters(), fused=True), nn.MSELoss()
    x, y = torch.randn(ROWS, 13, device=device), torch.randn(ROWS, 1, device=device)

    def steps() -> None:
        for _ in range(STEPS):
            rows = torch.randint(ROWS, (size,), device=device)
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()

    moves_all(steps, net.parameters(), "plain PyTorch")
    return steps


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
