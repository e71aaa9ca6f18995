"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.lab.benchmarks.steps [--rounds N] [--names '[LSTM]'] [--out FILE] [--device cuda]``: one
thread, process time (on a GPU wall time), interleaved medians; every variant must first change each of its parameters.
Installed peers are included (`analysis/lab/peers`), except for the LSTM, for which they have no layer. Compilation takes
minutes. On a GPU the peers are `torch.compile` and NumPyro, and the results have the error of a variant that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyrodrop.analysis.lab.benchmarks.timing import begin, clock_of, command, interleaved, moves_all, report, why, write
from pyrodrop.analysis.lab.peers.networks import BATCH, TABLE, Network, Steps, networks, ours, plain
from pyrodrop.analysis.lab.peers.training import Trainer, installed, releases
from pyrodrop.constraints import EngineName as Name

ENGINES: tuple[Name, ...] = ("compiled", "traced", "pyro")
OURS: dict[str, tuple[str, Name]] = {
    f"ours, {posterior}, {engine}": (posterior, engine)
    for engine in ENGINES
    for posterior in ("Bernoulli", "variational B")
}


ON_A_GPU = {name: how for name, how in OURS.items() if how[1] != "pyro" and how != ("variational B", "traced")}
MODES = {"plain PyTorch, torch.compile": "default", "plain PyTorch, reduce-overhead": "reduce-overhead"}


def main(
    rounds: int = 15,
    names: Sequence[str] = TABLE,
    sizes: Sequence[int] = (BATCH,),
    out: Path | None = None,
    device: str = "cpu",
) -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        names: networks to time, of MLP, LeNet, 13-50-1 and LSTM.
        sizes: rows of a minibatch.
        out: JSON file for the results.
        device: cpu, cuda, cuda:1 ...
    """
    begin(device)
    on_gpu = device != "cpu"
    others = [peer for peer in installed() if not on_gpu or peer.package == "numpyro"]
    ratios: dict[str, dict[str, float]] = {}
    before: dict[str, dict[str, Any]] = {}
    every = networks(device)
    for size in sizes:
        for name in names:
            title = name if size == BATCH else f"{name}, {size} rows"
            network = every[name]
            if size != BATCH:
                x, y = (
                    tensor.repeat(8 * size // len(tensor) + 1, *(1,) * (tensor.dim() - 1))
                    for tensor in (network.x, network.y)
                )
                network = replace(network, size=size, x=x, y=y)
            made, before[title] = prepared(
                network, ON_A_GPU if on_gpu else OURS, others if name in TABLE else [], on_gpu
            )
            for variant, value in compared(network, made, rounds).items():
                ratios.setdefault(variant, {})[title] = value
            report("one step, ratio to plain PyTorch", ratios)
            about = {"rounds": rounds, "peers": releases(others), "seconds before": before, "ratios": ratios}
            write(out, "steps", about, device)


def prepared(
    network: Network, engines: Mapping[str, tuple[str, Name]], others: Sequence[Trainer], on_gpu: bool
) -> tuple[dict[str, Steps], dict[str, Any]]:
    """The steps of every variant, checked to train, and the seconds that this took, or on a GPU the error of the variant."""
    makers: dict[str, Callable[[], Steps]] = {
        "plain": lambda: plain(network),
        "plain PyTorch, fused Adam": lambda: plain(network, fused=True),
    }
    if on_gpu:
        makers |= {name: lambda mode=mode: plain(network, fused=True, compiled=mode) for name, mode in MODES.items()}  # type: ignore[misc]
    makers |= {variant: lambda how=how: ours(network, *how) for variant, how in engines.items()}  # type: ignore[misc]
    makers |= {peer.name: lambda peer=peer: peer.steps(network) for peer in others}  # type: ignore[misc]
    made, seconds = dict[str, Steps](), dict[str, Any]()
    for variant, make in makers.items():
        start = time.perf_counter()
        try:
            steps = make()
            moves_all(*steps, f"{network.name}, {variant}")
        except Exception as error:
            if not on_gpu:
                raise
            seconds[variant] = why(error)
            continue
        made[variant], seconds[variant] = steps, time.perf_counter() - start
    return made, seconds


def compared(network: Network, steps: Mapping[str, Steps], rounds: int) -> dict[str, float]:
    """Milliseconds of a plain step, and the cost of every other variant's step relative to it."""
    seconds = interleaved(
        {variant: call for variant, (call, _) in steps.items()}, rounds, 3, clock_of(network.x.device)
    )
    plain_seconds = seconds.pop("plain")
    return {"plain PyTorch, ms": 1e3 * plain_seconds / network.steps} | {
        variant: value / plain_seconds for variant, value in seconds.items()
    }


if __name__ == "__main__":
    command(main)
