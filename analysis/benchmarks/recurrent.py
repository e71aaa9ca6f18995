"""An LSTM with one mask per weight: a compiled step against a plain one, and replicates against fits one after the other.

``python -m pyrodrop.analysis.benchmarks.recurrent [--length T] [--count R] [--rounds N] [--out FILE]``: nn.LSTM of 64 units
over 50 steps of one number, minibatches of 64, dropout of the input units of every weight at rate 0.1, against nn.LSTM
itself with such masks and fused Adam; one thread, process time, interleaved medians. The seconds before the first step are
those of a recording and, for ``compiled``, of TorchInductor, which compiles all steps of the sequence one by one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write
from pyrodrop.data import Dataset
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack

UNITS, BATCH, RATE, STEPS = 64, 64, 0.1, 5


class Last(nn.Module):
    """A number from the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm: nn.LSTM = nn.LSTM(1, UNITS, batch_first=True)
        self.head: nn.Linear = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def main(length: int = 50, count: int = 8, rounds: int = 15, out: Path | None = None) -> None:
    """Time steps of every variant.

    Args:
        length: number of steps of a sequence.
        count: how many replicates.
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine())
    variants, seconds = {"plain": plain(length)}, {"plain": 0.0}
    for engine in ("pyro", "traced", "compiled"):
        start = time.perf_counter()
        variants[engine] = fit(length, engine)
        seconds[engine] = time.perf_counter() - start
    for engine in ("traced", "compiled"):
        start = time.perf_counter()
        variants[f"{count}, {engine}"] = replicates(length, count, engine)
        seconds[f"{count}, {engine}"] = time.perf_counter() - start
    found = interleaved(variants, rounds, 2, time.process_time)
    rows = {
        name: {
            "a step, ms": value / STEPS * 1e3,
            "of a plain step": value / found["plain"],
            "before the first, s": seconds[name],
        }
        for name, value in found.items()
    }
    report(f"nn.LSTM of {UNITS} units, {length} steps, minibatches of {BATCH}", rows)
    together = {
        engine: {
            "plain steps one by one": count * found["plain"] / found[f"{count}, {engine}"],
            "fits one by one": count * found[engine] / found[f"{count}, {engine}"],
        }
        for engine in ("traced", "compiled")
    }
    report(f"{count} replicates: times as fast as", together)
    write(out, "recurrent", {"length": length, "count": count, "rounds": rounds, "steps": rows, "replicates": together})


def data_of(seed: int, length: int) -> Dataset:
    """Standardised noise."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8 * BATCH, length, 1, generator=generator), torch.randn(8 * BATCH, 1, generator=generator)
    return Dataset(x, y)


def pair(seed: int) -> tuple[models.NetworkModel, guides.BernoulliDropout]:
    """A model and its guide."""
    torch.manual_seed(seed)
    model = models.from_module(Last(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    return model, guides.BernoulliDropout(model, RATE)


def plain(length: int) -> Callable[[], None]:
    """Steps of nn.LSTM, with a mask of the columns of each weight for a minibatch."""
    net, data = Last(), data_of(0, length)
    optimizer, loss, x, y = torch.optim.Adam(net.parameters(), fused=True), nn.MSELoss(), data.x, data.y
    assert isinstance(x, Tensor)
    weights = {name: value for name, value in net.named_parameters() if value.dim() > 1}

    def steps() -> None:
        for _ in range(STEPS):
            rows = torch.randint(len(y), (BATCH,))
            masks = {name: torch.bernoulli(torch.full_like(value[0], 1 - RATE)) for name, value in weights.items()}
            masked = {name: value * masks[name] for name, value in weights.items()}
            optimizer.zero_grad()
            loss(functional_call(net, masked, (x[rows],)), y[rows]).backward()
            optimizer.step()

    moves_all(steps, net.parameters(), "plain PyTorch")
    return steps


def fit(length: int, engine: Any) -> Callable[[], None]:
    """Steps of one fit."""
    settings: Any = {"steps": 100_000, "batch_size": BATCH, "estimator": "shared", "engine": engine, "device": "cpu"}
    training: Any = pyrodrop.Training(*pair(0), data_of(0, length), **settings)

    def steps() -> None:
        training.advance(STEPS)

    moves_all(steps, lambda: training.fit.guide.parameters(), f"the fit by {engine}")
    if training.engine != engine:
        raise RuntimeError(f"the fit was made by {training.engine!r} and not by {engine!r}")
    return steps


def replicates(length: int, count: int, engine: Any) -> Callable[[], None]:
    """Steps of several fits together, each with its own data."""
    sets = [data_of(r, length) for r in range(count)]
    problems = [Problem.of(*pair(r), one, "shared", torch.device("cpu")) for r, one in enumerate(sets)]
    settings = Settings(steps=100_000, batch_size=BATCH, estimator="shared", engine=engine, device="cpu")
    loop: Loop = Stack(problems, settings, sets).loop()
    loop.start()

    def steps() -> None:
        loop.advance(loop.done + STEPS)

    moves_all(steps, loop.parameters.values(), f"replicates by {engine}")
    if (loop.engine.name == "compiled") != (engine == "compiled"):
        raise RuntimeError(f"the replicates were trained by {loop.engine.name!r} and not by {engine!r}")
    return steps


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
