"""Networks trained at once, compared with as many trained one after the other in plain PyTorch or as compiled fits.

``python -m pyrodrop.analysis.benchmarks.replicates [--network NAME] [--count R] [--rounds N] [--out FILE] [--device cuda]``:
a network of `analysis.peers.networks`, each replicate with separate data and minibatches of 128, against `nn.Dropout` with
fused Adam and against one compiled fit, whose times are multiplied by R; one thread, process time (on a GPU wall time),
interleaved medians. For 100 and more of 13-50-1 on a CPU, whole calls with minibatches of 32 are timed, too; an earlier call
has compiled for them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pyrodrop
from pyrodrop.analysis.benchmarks.timing import begin, clock_of, command, interleaved, moves_all, report, write
from pyrodrop.analysis.peers.networks import BATCH, Network, networks, ours, pair, plain
from pyrodrop.constraints import EngineName as Name
from pyrodrop.data import Dataset
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stacked import Stack, loss_of

ROWS = 512  # rows of the data of each network
_OWN = (
    1000  # replicates with a model and a guide of their own; more of them share the first one's, to be ready in minutes
)


def main(
    network: str = "13-50-1", count: int = 240, rounds: int = 9, out: Path | None = None, device: str = "cpu"
) -> None:
    """Time a step of all networks.

    Args:
        network: MLP, LeNet, 13-50-1 or LSTM.
        count: number of networks.
        rounds: timings of every variant.
        out: JSON file for the results.
        device: cpu, cuda, cuda:1 ...
    """
    begin(device)
    of_all = networks(device)[network]
    few = max(1, of_all.steps // 5)
    together, (fit, _), (eager, _) = (
        stacked(of_all, count),
        ours(of_all, "Bernoulli", "compiled"),
        plain(of_all, fused=True),
    )
    variants = {"together": lambda: together.advance(together.done + few), "plain": eager, "fits": fit}
    moves_all(variants["together"], together.parameters.values(), "the replicated step")
    seconds = interleaved(variants, rounds, 2, clock_of(device))
    row = row_of({name: s / (few if name == "together" else of_all.steps) for name, s in seconds.items()}, count)
    report(f"{count} networks {network}, own data", {"one step of all": row})
    whole = {"whole": whole_calls(of_all, count)} if device == "cpu" and count >= 100 and network == "13-50-1" else {}
    write(out, "replicates", {"network": network, "rounds": rounds, "count": count, **row, **whole}, device)


def row_of(seconds: dict[str, float], count: int) -> dict[str, float]:
    """The row of a report, from seconds of a step of all networks together, of a plain step, and of a step of a fit."""
    ours, theirs, fits = (seconds[name] * 1e3 for name in ("together", "plain", "fits"))
    return {
        "replicated, ms": ours,
        f"{count} plain steps, ms": theirs * count,
        f"{count} steps of compiled fits, ms": fits * count,
        "times as fast": theirs * count / ours,
        "times as fast as compiled fits": fits * count / ours,
    }


def whole_calls(network: Network, count: int, steps: int = 2_000, size: int = 32) -> dict[str, float]:
    """The row of a report for whole calls: `fit_replicates`, and `count` fits and plain loops, timed for one of each."""
    model, guide = pair(network)
    sets = [data_of(network, r) for r in range(count)]
    settings: Any = {"batch_size": size, "estimator": "local", "engine": "compiled", "device": "cpu", "progress": False}
    calls: dict[str, Callable[[int], object]] = {
        "together": lambda n: pyrodrop.fit_replicates(model, guide, sets, count=count, steps=n, **settings),
        "plain": lambda n: plain(replace(network, steps=n, size=size), fused=True)[0](),
        "fits": lambda n: pyrodrop.fit(model, guide, sets[0], steps=n, **settings),
    }
    for call in calls.values():
        call(40)
    seconds = interleaved(
        {name: functools.partial(call, steps) for name, call in calls.items()}, 1, 0, time.process_time
    )
    row = row_of({name: value / steps for name, value in seconds.items()}, count)
    report(f"{count} networks, whole calls of {steps:,} steps with minibatches of {size}, by step", {"all": row})
    return {"steps": steps, "batch_size": size, **row}


def data_of(network: Network, seed: int) -> Dataset:
    """Noise of the shapes of the network's data."""
    generator = torch.Generator(network.x.device).manual_seed(seed)
    x = torch.randn(ROWS, *network.x.shape[1:], generator=generator, device=network.x.device)
    return Dataset(x, network.y[torch.randperm(len(network.y), generator=generator, device=network.x.device)[:ROWS]])


def stacked(network: Network, count: int, engine: Name = "compiled", *, own: bool = True) -> Stack:
    """A training of `count` networks. If `own`, data and, up to `_OWN` networks, models are separate; else shared."""
    device = network.x.device
    sets = [data_of(network, r) for r in range(count)] if own else [data_of(network, 0)] * count
    settings = Settings(
        steps=100_000 if own else 1_000, batch_size=BATCH, estimator=network.estimator, engine=engine, device=str(device)
    )  # fmt: skip
    problems: list[Problem] = []
    for r, data in enumerate(sets):
        shared = r > 0 and (count > _OWN or not own)
        problems.append(problems[0] if shared else Problem.of(*pair(network), data, settings))
    distinct = {id(problem): problem for problem in problems}
    with training_mode(*distinct.values()):
        losses = {of: loss_of(problem, settings) for of, problem in distinct.items()}
        stack = Stack(problems, [losses[id(problem)] for problem in problems], settings, sets)
        stack.first_step()
        stack.choose_engine(len(stack.history) - 1)
    if (stack.engine.name == "compiled") != (engine == "compiled"):
        raise RuntimeError(f"the replicates are trained by {stack.engine.name}, not by {engine}")
    return stack


if __name__ == "__main__":
    command(main)
