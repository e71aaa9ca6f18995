"""What one training step costs, as a ratio to plain PyTorch: eager `nn.Dropout` of the same network with default Adam.

``python -m pyrodrop.analysis.benchmarks.steps [--rounds N] [--out FILE]``: one thread, process time, variants in turn,
medians; every variant first moves every one of its parameters. Peers that are installed take part (`peers.txt`).
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import jsonargparse
import torch

from pyrodrop.analysis.benchmarks.networks import networks, ours, plain
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write
from pyrodrop.stepper import Name

OURS: dict[str, tuple[str, Name]] = {
    "ours, Bernoulli, compiled": ("Bernoulli", "compiled"),
    "ours, variational B, compiled": ("variational B", "compiled"),
    "ours, Bernoulli, traced": ("Bernoulli", "traced"),
    "ours, variational B, traced": ("variational B", "traced"),
    "ours, Bernoulli, pyro": ("Bernoulli", "pyro"),
    "ours, variational B, pyro": ("variational B", "pyro"),
}


def main(rounds: int = 15, out: Path | None = None) -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine())
    ratios: dict[str, dict[str, float]] = {"plain PyTorch, ms": {}, "plain PyTorch, fused Adam": {}}
    for name, network in networks().items():
        steps = {"plain": plain(network), "plain PyTorch, fused Adam": plain(network, fused=True)}
        steps |= {variant: ours(network, *how) for variant, how in OURS.items()}
        for variant, (call, parameters) in steps.items():
            moves_all(call, parameters, f"{name}, {variant}")
        seconds = interleaved({variant: call for variant, (call, _) in steps.items()}, rounds, 3, time.process_time)
        ratios["plain PyTorch, ms"][name] = 1e3 * seconds["plain"] / network.steps
        for variant in list(seconds)[1:]:
            ratios.setdefault(variant, {})[name] = seconds[variant] / seconds["plain"]
    report("one step, ratio to plain PyTorch", ratios)
    write(out, "steps", {"rounds": rounds, "ratios": ratios})


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
