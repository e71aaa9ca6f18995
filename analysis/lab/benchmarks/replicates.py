"""Networks trained at once, compared with as many trained one after the other in plain PyTorch or as compiled fits.

``python -m pyrodrop.analysis.lab.benchmarks.replicates [--network NAME] [--count R] [--rounds N] [--out FILE] [--device
cuda]``: a network of `analysis.lab.peers.networks`, each replicate with separate data and minibatches of 128, against
`nn.Dropout` with fused Adam and against one compiled fit, whose times are multiplied by R; one thread, process time (on a
GPU wall time), interleaved medians. For 100 and more of 13-50-1 on a CPU, whole calls with minibatches of 32 are timed,
too; an earlier call has compiled for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Measured, Timed, command, report
from pyrodrop.analysis.lab.peers.networks import BATCH, Network, networks, ours, pair, plain
from pyrodrop.constraints import EngineName as Name
from pyrodrop.data import Dataset
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stacked import Stack, loss_of

STEPS, SIZE = 2_000, 32  # of whole calls
ROWS = 512  # rows of the data of each network
_OWN = 1000  # replicates with separate models and guides; if more, they share the first one's, to be ready in minutes


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
    of_all = networks(device)[network]
    rows = {"step": steps_of}
    if device == "cpu" and count >= 100 and network == "13-50-1":
        rows["whole"] = whole_calls

    def show(measured: Measured) -> dict[str, Any]:
        steps = {"step": of_all.steps, "whole": STEPS}
        tables = {name: row_of(cells, count, steps[name]) for name, cells in measured.items()}
        report(f"{count} networks {network}, own data, by step", tables)
        whole = {"whole": {"steps": STEPS, "batch_size": SIZE, **tables["whole"]}} if "whole" in tables else {}
        return {"network": network, "count": count, **tables["step"], **whole}

    Bench("replicates", rows, show, lambda make, _: make(of_all, count), warmup=2).run(rounds, out, device)


def steps_of(network: Network, count: int) -> dict[str, Callable[[], Timed]]:
    """As many steps as `plain` of all networks at once, of a plain loop, and of a fit."""

    def together() -> Timed:
        stack = stacked(network, count)
        return lambda: stack.advance(stack.done + network.steps), list(stack.parameters.values())

    return {
        "together": together,
        "plain": functools.partial(plain, network, fused=True),
        "fits": functools.partial(ours, network, "Bernoulli", "compiled"),
    }


def row_of(cells: Mapping[str, Mapping[str, Any]], count: int, steps: int) -> dict[str, float]:
    """The row of a report, from seconds of steps of all networks together, of plain steps, and of steps of a fit."""
    ours, theirs, fits = (cells[name]["seconds"] * 1e3 / steps for name in ("together", "plain", "fits"))
    return {
        "replicated, ms": ours,
        f"{count} plain steps, ms": theirs * count,
        f"{count} steps of compiled fits, ms": fits * count,
        "times as fast": theirs * count / ours,
        "times as fast as compiled fits": fits * count / ours,
    }


def whole_calls(network: Network, count: int) -> dict[str, Callable[[], Timed]]:
    """Whole calls, which an earlier one has compiled for: `fit_replicates`, one fit, and one plain loop."""
    model, guide = pair(network)
    sets = [data_of(network, r) for r in range(count)]
    settings: Any = {
        "steps": STEPS, "batch_size": SIZE, "estimator": "local", "engine": "compiled", "device": "cpu", "progress": False,
    }  # fmt: skip
    calls: dict[str, Callable[[], object]] = {
        "together": lambda: pyrodrop.fit_replicates(model, guide, sets, count=count, **settings),
        "plain": lambda: plain(replace(network, steps=STEPS, size=SIZE), fused=True)[0](),
        "fits": lambda: pyrodrop.fit(model, guide, sets[0], **settings),
    }
    return {name: functools.partial(lambda call: (call, None), call) for name, call in calls.items()}


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
