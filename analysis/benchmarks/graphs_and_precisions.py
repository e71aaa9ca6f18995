"""Compiled steps on a GPU: as one CUDA graph and launched kernel by kernel, in float32, TensorFloat-32 and bfloat16.

``python -m pyrodrop.analysis.benchmarks.graphs_and_precisions [--rounds N] [--width W] [--out FILE] [--device cuda]``: the
networks of `benchmarks.steps` and 784-W-W-10; wall time, interleaved medians. On a CPU there are neither CUDA graphs nor
TensorFloat-32, and the other variants are timed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import cyclopts
import torch

from pyrodrop.analysis.benchmarks.networks import Network, Steps, dense, networks, ours, plain
from pyrodrop.analysis.benchmarks.timing import clock_of, interleaved, machine, moves_all, report, write
from pyrodrop.devices import tf32_products
from pyrodrop.engines import compiled
from pyrodrop.training.settings import Precision

POSTERIOR = "variational B"
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")


def main(rounds: int = 15, width: int = 4000, out: Path | None = None, device: str = "cuda") -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        width: hidden units of the large network.
        out: JSON file for the results.
        device: cuda, cuda:1 ... or cpu.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine(device))
    by_name = networks(device)
    mlp = by_name["MLP"]
    large = f"784-{width}-{width}-10"
    by_name[large] = Network(
        large, lambda d: dense(d, 784, width, width, 10), mlp.x, mlp.y, mlp.loss, mlp.likelihood, mlp.steps
    )
    ratios: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for name, network in by_name.items():
        steps, without = variants(network, gpu=device != "cpu")
        refused |= {f"{name}, {variant}": why for variant, why in without.items()}
        for variant, (call, parameters) in steps.items():
            moves_all(call, parameters, f"{name}, {variant}")
        seconds = interleaved({variant: call for variant, (call, _) in steps.items()}, rounds, 3, clock_of(device))
        ratios.setdefault("plain PyTorch, ms", {})[name] = 1e3 * seconds["plain PyTorch"] / network.steps
        for variant in [variant for variant in seconds if variant != "plain PyTorch"]:
            ratios.setdefault(variant, {})[name] = seconds[variant] / seconds["plain PyTorch"]
    report(f"one step, {POSTERIOR}, ratio to plain PyTorch", ratios)
    write(
        out,
        "graphs_and_precisions",
        {"rounds": rounds, "posterior": POSTERIOR, "ratios": ratios, "refused": refused},
        device,
    )


def variants(network: Network, *, gpu: bool) -> tuple[dict[str, Steps], dict[str, str]]:
    """The steps to be timed, plain PyTorch's first, and why there are no others."""
    made: dict[str, Callable[[], Steps]] = {"plain PyTorch": lambda: plain(network)}
    for precision in PRECISIONS:
        if gpu or precision != "tf32":
            made[f"compiled, {precision}"] = functools.partial(in_precision, network, precision)
    if gpu:
        made["compiled, float32, no CUDA graph"] = functools.partial(without_graph, network)
    made["traced, float32"] = lambda: ours(network, POSTERIOR, "traced")
    steps: dict[str, Steps] = {}
    refused: dict[str, str] = {}
    for name, make in made.items():
        try:
            steps[name] = make()
        except RuntimeError as error:  # another engine has taken over
            refused[name] = str(error)
            print(f"{name}: {error}")
    return steps, refused


def without_graph(network: Network) -> Steps:
    """Compiled steps whose kernels are launched one by one."""
    with mock.patch.object(compiled, "Captured", lambda program, *_: program):
        return in_precision(network, "float32")


def in_precision(network: Network, precision: Precision) -> Steps:
    """Compiled steps whose matrix products have this precision, as `pyrodrop.fit` makes them."""
    place = network.x.device
    with tf32_products(precision == "tf32", place):
        call, parameters = ours(network, POSTERIOR, "compiled", precision=None if precision == "float32" else precision)

    def steps() -> None:
        with tf32_products(precision == "tf32", place):
            call()

    return steps, parameters


if __name__ == "__main__":
    cyclopts.run(main)
