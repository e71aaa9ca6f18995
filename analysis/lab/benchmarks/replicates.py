"""Networks trained at once, compared with as many trained one after the other in plain PyTorch or as compiled fits.

``python -m pyrodrop.analysis.lab.benchmarks.replicates [--names '[8 of LeNet]'] [--rounds N] [--device cuda] [FILE]``: R
networks, each with separate data and minibatches of 128, against `nn.Dropout` with fused Adam and against one compiled fit,
whose times are multiplied by R; one thread, process time (on a GPU wall time), interleaved medians. Of whole calls, with
minibatches of 32, an earlier one has compiled; these are timed on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Timed, command
from pyrodrop.analysis.lab.peers.networks import BATCH, Network, networks, ours, pair, plain
from pyrodrop.checks import EngineName as Name
from pyrodrop.data import Dataset
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stacked import Stack, loss_of

STEPS, SIZE = 2_000, 32  # of whole calls
ROWS = 512  # rows of the data of each network
TOGETHER = "together"
_OWN = 1000  # replicates with separate models and guides; if more, they share the first one's, to be ready in minutes


def steps_of(network: Network, count: int) -> dict[str, Callable[[], Timed]]:
    """As many steps as `plain` of all networks at once, of a plain loop, and of a fit."""

    def together() -> Timed:
        stack = stacked(network, count)
        return lambda: stack.advance(stack.done + network.steps), list(stack.parameters.values())

    return {
        TOGETHER: together,
        "plain, one by one": functools.partial(plain, network, fused=True),
        "fits, one by one": functools.partial(ours, network, "Bernoulli", "compiled"),
    }


def whole_calls(network: Network, count: int) -> dict[str, Callable[[], Timed]]:
    """Whole calls, which an earlier one has compiled for: `fit_replicates`, one fit, and one plain loop."""
    model, guide = pair(network)
    sets = [data_of(network, r) for r in range(count)]
    settings: Any = {
        "steps": STEPS, "batch_size": SIZE, "estimator": "local", "engine": "compiled", "device": "cpu", "progress": False,
    }  # fmt: skip
    calls: dict[str, Callable[[], object]] = {
        TOGETHER: lambda: pyrodrop.fit_replicates(model, guide, sets, count=count, **settings),
        "plain, one by one": plain(replace(network, steps=STEPS, size=SIZE), fused=True)[0],
        "fits, one by one": lambda: pyrodrop.fit(model, guide, sets[0], **settings),
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


def variants(problem: tuple[str, int, bool], device: str) -> dict[str, Callable[[], Timed]]:
    """The variants of a number of networks, by step or by whole call."""
    name, count, whole = problem
    return (whole_calls if whole else steps_of)(networks(device)[name], count)


def seconds_of(problem: tuple[str, int, bool], variant: str, device: str) -> float:
    """The factor from a call to a step of all networks."""
    name, count, whole = problem
    return (1 if variant == TOGETHER else count) / (STEPS if whole else networks(device)[name].steps)


CASES = {f"{count} of {name}": (name, count, False) for name, count in (("13-50-1", 240), ("LeNet", 8))}
CASES |= {"240 of 13-50-1, whole calls": ("13-50-1", 240, True)}
BENCH = Bench("replicates", CASES, variants, warmup=2, per=seconds_of, usual=["240 of 13-50-1"])

if __name__ == "__main__":
    command(BENCH.run)
